"""The gateway's protocol: the service that the gateway smg calls."""
