"""What operators see of a server: metrics, traces and a line of log for each request."""
