"""Name the lengths of the norms' operands, of which a launch hands over each only once (`engine.same_lengths`)."""

from normlab.stages.row_map import RowMap

FORWARD = "x", "residual", "gate", "new_residual", "output"
BACKWARD = "grad_output", "saved", "grad_residual", "grad_input", "grad_gate"
LENGTHS = {
    **dict.fromkeys((*FORWARD, *BACKWARD), "n1 n2"),
    **dict.fromkeys(("mean", "invvar"), "n1"),
    **dict.fromkeys(("weight", "bias", "grad_weight", "grad_bias"), "n2"),
    **dict.fromkeys(("part_weight", "part_bias"), "parts sums"),  # a row of sums may be longer than n2
    "row_sums": "three n1",
}


def lengths_with(**maps: RowMap | None) -> dict[str, str]:
    """Return the names where rows of operands may lie apart: there are then more places than rows. maps: by operand."""
    return LENGTHS | {name: f"{name}_places n2" for name, row_map in maps.items() if row_map is not None}
