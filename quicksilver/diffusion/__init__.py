"""The mathematics of denoising: pure functions of tensors. Imports no model, no engine, no request."""
