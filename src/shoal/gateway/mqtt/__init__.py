"""A bridge between streams and the topics of an MQTT broker."""
