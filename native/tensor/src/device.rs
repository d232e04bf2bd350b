//! Devices of tensors. A CPU is always present. An NVIDIA card is looked up; on failure the error names the missing
//! part.

use candle_core::{Device, Tensor};

use crate::{Error, Result};

#[cfg(feature = "cuda")]
mod cuda;
pub mod launch;
#[cfg(any(feature = "cuda", test))]
mod leaving;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(unreachable_pub))]
mod ledger;
pub mod memory;
pub mod missing;
#[cfg(not(feature = "cuda"))]
mod none;
mod operand;
#[cfg(feature = "cuda")]
pub use cuda::{
    Caching, Foreign, Graph, Shared, Uploads, Workspace, apart, attach, leave, memory, open,
    refusals, release, settle, shrink,
};
#[cfg(feature = "cuda")]
pub use ledger::Held;
pub use memory::{Budget, Kept, Memory, Owner, allow, budget};
pub use missing::Missing;

/// Whether this build supports CUDA.
pub const CUDA: bool = cfg!(feature = "cuda");

/// Devices that hold replicas of one policy.
pub struct Devices {
    /// The devices, in the order of their name, such as `cuda:0,1`.
    pub all: Vec<Device>,
    /// The sum across devices. `None` for a single device.
    pub sum: Option<Box<dyn AllReduce>>,
}

/// Sums tensors across devices.
pub trait AllReduce {
    /// Returns the sum of `parts` on every device. `parts` holds one tensor per device. The sums are bit-identical on
    /// all devices; the order of additions depends on the implementation.
    ///
    /// # Shapes
    /// `[n]` for each part and each sum.
    fn sum(&self, parts: &[Tensor]) -> Result<Vec<Tensor>>;
}

/// Checks that policies can run on the cards with these ordinals (the driver's numbers), and on several together.
/// Creates no context, because a context takes memory on the card.
pub fn check(ordinals: &[usize]) -> Result<()> {
    look(ordinals).map_err(|missing| {
        let numbers: Vec<_> = ordinals.iter().map(usize::to_string).collect();
        Error::NoDevice { device: format!("cuda:{}", numbers.join(",")), missing }
    })
}

/// The device of a name: `cpu`, or `cuda:` and the ordinal of a card. Words after the name are ignored, such as
/// `(auto)`.
///
/// # Errors
/// `NoDevice` if policies cannot run on the card, `Mismatch` for any other name.
pub fn named(text: &str) -> Result<Device> {
    match parse(text).as_deref() {
        Some([]) => Ok(Device::Cpu),
        Some([ordinal]) => open(*ordinal),
        _ => Err(Error::mismatch("device", "cpu or cuda:N", text)),
    }
}

/// The devices of a name: one device as [`named`] accepts it, or the cards of a list such as `cuda:0,1`.
///
/// # Errors
/// The errors of [`named`], and `Mismatch` if a card is listed twice.
pub fn several(text: &str) -> Result<Devices> {
    match parse(text).as_deref() {
        Some(ordinals @ [_, _, ..]) => {
            check(ordinals)?;
            let all = ordinals.iter().map(|&ordinal| open(ordinal)).collect::<Result<Vec<_>>>()?;
            Ok(Devices { sum: Some(all_reduce(&all)?), all })
        }
        _ => Ok(Devices { all: vec![named(text)?], sum: None }),
    }
}

/// The number of devices in a name.
pub fn count(text: &str) -> usize {
    parse(text).map_or(1, |ordinals| ordinals.len().max(1))
}

/// The ordinals of the cards in a name; empty for the CPU, `None` for an unknown name.
fn parse(text: &str) -> Option<Vec<usize>> {
    let name = text.split(' ').next().unwrap_or_default();
    if name == "cpu" {
        return Some(vec![]);
    }
    let ordinals = name.strip_prefix("cuda:")?.split(',').map(|ordinal| ordinal.parse().ok());
    let ordinals = ordinals.collect::<Option<Vec<usize>>>()?;
    let twice = (1..ordinals.len()).any(|i| ordinals[..i].contains(&ordinals[i]));
    (!twice).then_some(ordinals)
}

#[cfg(feature = "cuda")]
use cuda::{all_reduce, grown, look, place};

#[cfg(not(feature = "cuda"))]
fn all_reduce(_devices: &[Device]) -> Result<Box<dyn AllReduce>> {
    Err(Error::NoDevice { device: "cuda".into(), missing: Missing::Build })
}

#[cfg(not(feature = "cuda"))]
use none::look;
#[cfg(not(feature = "cuda"))]
pub use none::{
    Caching, Foreign, Graph, Held, Shared, Uploads, Workspace, apart, attach, leave, memory, open,
    refusals, release, settle, shrink,
};
#[cfg(all(test, not(feature = "cuda")))]
use none::{grown, place};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_name_and_a_missing_card_is_named_in_the_error() {
        for name in ["cpu", "cpu (auto)"] {
            assert!(named(name).is_ok_and(|device| device.is_cpu()), "{name}");
        }
        for name in ["", "cuda", "cuda:", "cuda:-1", "gpu:0", "cpu:0", "cuda:0,1"] {
            assert!(matches!(named(name), Err(Error::Mismatch { .. })), "{name}");
        }
        for (name, card) in [("cuda:299", "cuda:299"), ("cuda:300 (auto)", "cuda:300")] {
            let refused = named(name).err();
            assert!(matches!(refused, Some(Error::NoDevice { device, .. }) if device == card));
        }
    }

    #[test]
    fn several_cards_are_listed_by_ordinal_without_repeats() {
        assert!(
            several("cpu").is_ok_and(|devices| devices.all.len() == 1 && devices.sum.is_none())
        );
        let counts = ["cpu", "cpu (auto)", "cuda:3", "cuda:3,0", "cuda:0,1,2,3"].map(count);
        assert_eq!(counts, [1, 1, 1, 2, 4]);
        for name in ["cuda:0,", "cuda:0,0", "cuda:1,0,1", "cpu,cpu", "cuda:0,cuda:1"] {
            assert!(matches!(several(name), Err(Error::Mismatch { .. })), "{name}");
        }
        let refused = several("cuda:299,300").err();
        assert!(
            matches!(refused, Some(Error::NoDevice { device, .. }) if device == "cuda:299,300")
        );
    }
}
