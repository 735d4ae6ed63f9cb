"""The gateway face: the service that the gateway smg calls."""
