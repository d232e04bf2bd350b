//! The columns of a segment as arrays by name.

use sconce_env::Numbers;
use sconce_nn::Policy;
use sconce_nn::backbone::State;
use sconce_tensor::{Error, Result};

use super::{Heard, Segment, Widths};
use crate::returns::Returns;

impl Segment {
    /// Copies the columns, without advantages.
    pub(crate) fn numbers(&self) -> Result<Numbers> {
        let mut all = Numbers::default();
        all.put_words("sizes", &[self.rows, self.steps, self.stride].map(|size| size as u32));
        all.put_words("ids", &self.ids);
        // A missing action is no finite number.
        let previous: Vec<u32> = self.previous.iter().map(|number| number.to_bits()).collect();
        all.put_words("previous", &previous);
        for (name, column) in [
            ("continuous", &self.continuous),
            ("labels", &self.labels),
            ("log_likelihoods", &self.log_likelihoods),
            ("values", &self.values),
            ("next_values", &self.next_values),
            ("rewards", &self.rewards),
        ] {
            all.put(name, column.clone());
        }
        let (terminated, truncated) = (&self.terminated, &self.truncated);
        let flags = [("terminated", terminated), ("truncated", truncated), ("mask", &self.mask)];
        for (name, flags) in flags {
            all.put(name, flags.iter().map(|flag| f32::from(*flag)).collect());
        }
        let joined = |states: &[State]| -> Result<Vec<f32>> {
            Ok(states.iter().map(State::to_vec).collect::<Result<Vec<_>>>()?.concat())
        };
        all.put("states", joined(&self.states)?);
        for (i, heard) in self.heard.iter().enumerate() {
            let [seen, teacher] = names(i);
            all.put(&seen, heard.seen.clone());
            all.put(&teacher, joined(&heard.states)?);
        }
        Ok(all)
    }

    /// The inverse of [`numbers`](Self::numbers), for a policy and the teachers of its run.
    ///
    /// # Errors
    /// `NotFound`, `Mismatch` or `Corrupt` for the columns of other environments.
    pub(crate) fn restored(
        numbers: &Numbers,
        policy: &Policy,
        teachers: &[&Policy],
    ) -> Result<Self> {
        let sizes = numbers.words("sizes")?;
        let [rows, steps, stride] = sizes[..] else {
            return Err(Error::mismatch("sizes of a rollout", 3, sizes.len()));
        };
        let (rows, steps, stride) = (rows as usize, steps as usize, stride as usize);
        let widths = Widths::of(policy.spec());
        let n = rows.saturating_mul(steps);
        let column = |name: &str, width: usize| {
            let own = numbers.get(name)?;
            match own.len() == n.saturating_mul(width) {
                true => Ok(own.to_vec()),
                false => Err(Error::mismatch(format!("{name} of a rollout"), n * width, own.len())),
            }
        };
        let words = |name: &str, width: usize| {
            let own = numbers.words(name)?;
            match own.len() == n.saturating_mul(width) {
                true => Ok(own),
                false => Err(Error::mismatch(format!("{name} of a rollout"), n * width, own.len())),
            }
        };
        let flags = |name: &str, width: usize| {
            let own = column(name, width)?;
            Ok::<_, Error>(own.iter().map(|flag| u8::from(*flag != 0.0)).collect())
        };
        // Without masks all actions were allowed.
        let mask_width = if numbers.get("mask")?.is_empty() { 0 } else { widths.mask };
        let states = |name: &str, policy: &Policy| {
            let (zero, own) = (policy.zero_state(rows)?, numbers.get(name)?);
            match zero.0.iter().map(sconce_tensor::Tensor::elem_count).sum() {
                0 => Ok(vec![]),
                width => own.chunks(width).map(|own| zero.with_values(own)).collect(),
            }
        };
        let heard = |(i, teacher): (usize, &&Policy)| {
            let [seen, own] = names(i);
            let seen = numbers.get(&seen)?.to_vec();
            Ok::<_, Error>(Heard { seen, states: states(&own, teacher)? })
        };
        let previous = words("previous", widths.labels)?.into_iter().map(f32::from_bits).collect();
        Ok(Segment {
            rows,
            steps,
            continuous: column("continuous", widths.continuous)?,
            ids: words("ids", widths.ids)?,
            previous,
            labels: column("labels", widths.labels)?,
            log_likelihoods: column("log_likelihoods", 1)?,
            values: column("values", 1)?,
            next_values: column("next_values", 1)?,
            rewards: column("rewards", 1)?,
            terminated: flags("terminated", 1)?,
            truncated: flags("truncated", 1)?,
            mask: flags("mask", mask_width)?,
            states: states("states", policy)?,
            stride: stride.max(1),
            heard: teachers.iter().enumerate().map(heard).collect::<Result<_>>()?,
            returns: Returns::default(),
        })
    }
}

/// Names of the arrays of a teacher: its frames and its memories.
fn names(teacher: usize) -> [String; 2] {
    ["seen", "teacher"].map(|name| numbered(name, teacher))
}

/// The name of an array of one of several teachers. The first has the name of a single one.
pub(crate) fn numbered(name: &str, teacher: usize) -> String {
    match teacher {
        0 => name.into(),
        _ => format!("{name}.{}", teacher + 1),
    }
}
