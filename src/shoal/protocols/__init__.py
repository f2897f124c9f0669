"""Pure protocol machines: data in, data out."""
