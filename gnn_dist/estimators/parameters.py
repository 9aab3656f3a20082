"""Scikit-learn's protocol of parameters and tags, for dataclasses whose fields are parameters."""

from dataclasses import fields
from typing import Any, Self

from gnn_dist.errors import ConfigError, nearest

__all__ = ["Parameters"]


class Parameters:
    """What `sklearn.base.clone`, grid searches and pipelines ask of an estimator.

    A subclass is a dataclass: its fields are stored as they are given, and checked when it is
    fitted. What fitting leaves has a name that ends with an underscore.
    """

    _estimator_type = ""  # classifier or regressor

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name. None holds an estimator, so that `deep` is ignored."""
        del deep
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Self:  # noqa: ANN401 - any parameter
        """Set some parameters; they are checked, like all, by `fit`.

        Raises:
            ConfigError: There is no such parameter.
        """
        names = self._parameters()
        for name in params:
            if name not in names:
                raise ConfigError(
                    f"{type(self).__name__} has no parameter {name!r}: {nearest(name, names)}"
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def _parameters(self) -> list[str]:
        return [field.name for field in fields(self)]  # type: ignore[arg-type]

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted estimator with the same parameters.

        They are not copied: a graph may be large, a world has sockets, and `fit` changes neither
        these nor a model.
        """
        return type(self)(**self.get_params())

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - scikit-learn is optional
        """Return what scikit-learn, the only caller, wants to know."""
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        is_classifier = self._estimator_type == "classifier"
        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=False, multi_output=True),
            classifier_tags=ClassifierTags(multi_label=True) if is_classifier else None,
            regressor_tags=None if is_classifier else RegressorTags(),
            input_tags=InputTags(one_d_array=True, two_d_array=False),
        )
