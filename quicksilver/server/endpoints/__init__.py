"""One folder per endpoint: route, wire models, plan and reply format."""
