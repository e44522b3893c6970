"""Running plans: Model, InferenceSession, frames, control flow."""
