"""What all of the worker's folders stand on, and which stands on none of them."""
