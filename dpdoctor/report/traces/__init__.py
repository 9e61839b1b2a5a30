"""What is shown of traces: shares of the devices' time, collectives, ranks compared, and one axis for all of them."""
