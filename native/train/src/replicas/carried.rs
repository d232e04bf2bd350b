//! The states that a resumed run goes on from.

use sconce_nn::backbone::State;
use sconce_nn::checkpoint::Optimiser;
use sconce_tensor::{Device, Error, Result};

use super::Replicas;
use crate::states::States;

/// Names of the tracks' states beside the moments: the learner's, and with a dot and the objective's name behind it that
/// of who looks on.
const LEARNER: &str = "carried";

impl Replicas<'_> {
    /// Adds what a resumed run has to know of the tracks: the states come from weights that are no more.
    pub(crate) fn save(&self, numbers: &mut Optimiser) -> Result<()> {
        let carried = || self.all.iter().filter_map(|replica| replica.carried.as_ref());
        save(numbers, LEARNER.into(), carried().map(|states| &states.learner))?;
        for (i, name) in self.names().into_iter().enumerate() {
            save(numbers, name, carried().filter_map(|states| states.companions.get(i)))?;
        }
        Ok(())
    }

    /// Goes on where tracks of so many windows were [saved](Self::save).
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

    /// Of the states of those who look on.
    fn names(&self) -> Vec<String> {
        let companions = self.stepper().objectives().companions();
        companions.map(|(name, _)| format!("{LEARNER}.{name}")).collect()
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

/// A state of the shapes of `zero`.
fn saved(numbers: &Optimiser, name: &str, zero: State) -> Result<State> {
    match numbers.get(name) {
        Some(saved) => zero.with_values(saved),
        None if zero.0.is_empty() => Ok(zero),
        None => Err(Error::not_found("states of the tracks")),
    }
}
