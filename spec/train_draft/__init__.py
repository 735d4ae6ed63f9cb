"""Training a small draft model for a target: samples, a differentiable decoder, distillation, acceptance."""
