"""Which DP unit decodes which prefilled request? One file per answer."""

from headway.policies.placement.protocol import Choice, DecodeUnit, Placeable, Placement

__all__ = ["Choice", "DecodeUnit", "Placeable", "Placement"]
