"""The machine of the driver: triggers, reports, completion; its events, actions and state."""
