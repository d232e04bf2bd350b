//! States of the tracks, saved for a resumed run to continue from.

use sconce_nn::backbone::State;
use sconce_nn::checkpoint::Optimiser;
use sconce_tensor::{Device, Error, Result};

use super::Replicas;
use crate::states::States;

/// Name under which the learner's states are saved, beside the moments. The name of a companion's states is this name,
/// a dot, and [its own](crate::objective::Objectives::state_names).
const LEARNER: &str = "carried";

impl Replicas<'_> {
    /// Adds the states of the tracks. A resumed run cannot recompute them, because earlier weights produced them.
    pub(crate) fn save(&self, numbers: &mut Optimiser) -> Result<()> {
        let carried = || self.all.iter().filter_map(|replica| replica.carried.as_ref());
        save(numbers, LEARNER.into(), carried().map(|states| &states.learner))?;
        for (i, name) in self.names().into_iter().enumerate() {
            save(numbers, name, carried().filter_map(|states| states.companions.get(i)))?;
        }
        Ok(())
    }

    /// Continues the [saved](Self::save) tracks of `windows` windows.
    pub(crate) fn load(&mut self, numbers: &Optimiser, windows: usize) -> Result<()> {
        let zero = self.all[0].zero(windows)?;
        let each = windows / self.count();
        let learner = saved(numbers, LEARNER, zero.learner)?;
        let names = self.names();
        let companions = names.iter().zip(zero.companions);
        let companions = companions.map(|(name, zero)| saved(numbers, name, zero));
        let companions = companions.collect::<Result<Vec<_>>>()?;
        for (i, replica) in self.all.iter_mut().enumerate() {
            let rows = i * each..(i + 1) * each;
            let zero = replica.zero(each)?;
            let own = |all: &State, zero: &State| zero.with_values(&all.rows(&rows)?.to_vec()?);
            let beside = companions.iter().zip(&zero.companions).map(|(all, zero)| own(all, zero));
            replica.carried = Some(States {
                learner: own(&learner, &zero.learner)?,
                companions: beside.collect::<Result<_>>()?,
            });
        }
        Ok(())
    }

    /// Names of the companions' states.
    fn names(&self) -> Vec<String> {
        let names = self.stepper().objectives().state_names();
        names.into_iter().map(|name| format!("{LEARNER}.{name}")).collect()
    }
}

fn save<'a>(
    numbers: &mut Optimiser,
    name: String,
    parts: impl Iterator<Item = &'a State>,
) -> Result<()> {
    let here = parts.map(|part| {
        let part = part.0.iter().map(|part| part.contiguous()?.to_device(&Device::Cpu));
        Ok(State(part.collect::<sconce_tensor::candle::Result<_>>()?))
    });
    let all = State::joined(&here.collect::<Result<Vec<_>>>()?)?;
    if !all.0.is_empty() {
        numbers.insert(name, all.to_vec()?);
    }
    Ok(())
}

/// Reads a state with the shapes of `zero`.
fn saved(numbers: &Optimiser, name: &str, zero: State) -> Result<State> {
    match numbers.get(name) {
        Some(saved) => zero.with_values(saved),
        None if zero.0.is_empty() => Ok(zero),
        None => Err(Error::not_found("states of the tracks")),
    }
}
