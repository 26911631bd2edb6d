"""The agent port's language and its two ends: messages, frames, a session, a subscription."""
