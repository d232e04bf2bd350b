//! The backbones of ExPhil, whose formulas differ from those of Sconce's backbones. Policies that are imported from
//! ExPhil use them.

mod constant;
pub(super) mod gated_ssm;
pub(super) mod jamba;
pub(super) mod mamba;
mod places;
mod ssm;
