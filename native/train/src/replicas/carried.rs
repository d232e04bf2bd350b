//! The states that a resumed run goes on from.

use sconce_nn::backbone::State;
use sconce_nn::checkpoint::Optimiser;
use sconce_tensor::{Device, Error, Result};

use super::Replicas;
use crate::lesson::States;

/// Names of the tracks' states beside the moments.
const LEARNER: &str = "carried";
pub(super) const TEACHER: &str = "carried.teacher";

impl Replicas<'_> {
    /// Adds what a resumed run has to know of the tracks: the states come from weights that are no more.
    pub(crate) fn save(&self, numbers: &mut Optimiser) -> Result<()> {
        let carried = self.all.iter().filter_map(|replica| replica.carried.as_ref());
        let teachers = carried.clone().filter_map(|states| states.teacher.as_ref());
        let learners = carried.map(|states| &states.learner);
        save(numbers, LEARNER, learners)?;
        save(numbers, TEACHER, teachers)
    }

    /// Goes on where tracks of so many windows were [saved](Self::save).
    pub(crate) fn load(&mut self, numbers: &Optimiser, windows: usize) -> Result<()> {
        let zero = self.all[0].zero(windows)?;
        let each = windows / self.count();
        let learner = saved(numbers, LEARNER, zero.learner)?;
        let teacher = zero.teacher.map(|zero| saved(numbers, TEACHER, zero)).transpose()?;
        for (i, replica) in self.all.iter_mut().enumerate() {
            let rows = i * each..(i + 1) * each;
            let zero = replica.zero(each)?;
            let own = |all: &State, zero: &State| zero.with_values(&all.rows(&rows)?.to_vec()?);
            let teacher = teacher.as_ref().zip(zero.teacher.as_ref());
            let teacher = teacher.map(|(all, zero)| own(all, zero)).transpose()?;
            replica.carried = Some(States { learner: own(&learner, &zero.learner)?, teacher });
        }
        Ok(())
    }
}

fn save<'a>(
    numbers: &mut Optimiser,
    name: &str,
    parts: impl Iterator<Item = &'a State>,
) -> Result<()> {
    let here = parts.map(|part| {
        let part = part.0.iter().map(|part| part.contiguous()?.to_device(&Device::Cpu));
        Ok(State(part.collect::<sconce_tensor::candle::Result<_>>()?))
    });
    let all = State::joined(&here.collect::<Result<Vec<_>>>()?)?;
    if !all.0.is_empty() {
        numbers.insert(name.into(), all.to_vec()?);
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
