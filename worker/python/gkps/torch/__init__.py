"""gkps for PyTorch: `optimizer = gkps.torch.Optimizer(model, torch.optim.SGD(...), density=0.01)`."""
from ._optimizer import Optimizer

__all__ = ["Optimizer"]
