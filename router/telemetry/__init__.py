"""What the router tells about itself: metrics, gauges and one line a request."""
