"""Scripts that measure one thing each: an alternative of an ADR, or what a message costs in calls or instructions."""
