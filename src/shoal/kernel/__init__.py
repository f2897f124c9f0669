"""The contract between pure protocol machines and whatever drives them."""
