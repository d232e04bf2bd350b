//! Votes: how often each choice of each question was named, and which one won.

use sconce_tensor::{Error, Result, memory};

/// The result of counting.
#[derive(Debug, PartialEq, Eq)]
pub struct Tally {
    /// `choices` counts for each question.
    pub counts: Vec<u32>,
    /// The winner of each question, or [`NONE`].
    pub winners: Vec<u32>,
}

/// No winner.
pub const NONE: u32 = u32::MAX;

/// Counts the votes of all questions in one pass. `voters` is the number of votes of each question, and `votes` holds them one
/// question after the other. The winner has more votes than any other choice, and more than `share` of all votes.
///
/// # Errors
/// `OutOfRange` for a vote for a choice that does not exist, `Mismatch` if `voters` are not those of `votes`,
/// `OutOfMemory` for more counts than fit.
pub fn tally(votes: &[u32], voters: &[u32], choices: usize, share: f64) -> Result<Tally> {
    let all: usize = voters.iter().map(|n| *n as usize).sum();
    if all != votes.len() {
        return Err(Error::mismatch(
            "votes",
            format!("{all}, those of the questions"),
            votes.len(),
        ));
    }
    let size = voters.len().saturating_mul(choices);
    memory::room("counts of votes", 4 * size as u64)?;
    let mut counts = memory::caught(|| Ok(memory::repeated(0_u32, size)))?;
    let mut winners = Vec::with_capacity(voters.len());
    let mut rest = votes;
    for (question, (row, voters)) in counts.chunks_mut(choices.max(1)).zip(voters).enumerate() {
        let (own, after) = rest.split_at_checked(*voters as usize).unwrap_or((rest, &[]));
        rest = after;
        for vote in own {
            match row.get_mut(*vote as usize) {
                Some(count) => *count += 1,
                None => {
                    let what = format!("a vote of question {question}");
                    let most = choices.saturating_sub(1) as f64;
                    return Err(Error::out_of_range(what, f64::from(*vote), 0.0, most));
                }
            }
        }
        winners.push(winner(row, share * f64::from(*voters)));
    }
    Ok(Tally { counts, winners })
}

/// The only choice with the most votes, if these are more than `least`.
fn winner(counts: &[u32], least: f64) -> u32 {
    let most = counts.iter().copied().max().unwrap_or_default();
    let mut first = counts.iter().enumerate().filter(|(_, count)| **count == most);
    match (first.next(), first.next()) {
        (Some((at, _)), None) if most > 0 && f64::from(most) > least => at as u32,
        _ => NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_tensor::Kind;

    #[test]
    fn votes_are_counted_by_question() {
        let votes = [0, 1, 1, 2, 2, 1, 2, 0];
        let tallied = tally(&votes, &[3, 2, 0, 3], 3, 0.5).unwrap();
        assert_eq!(tallied.counts, [1, 2, 0, 0, 0, 2, 0, 0, 0, 1, 1, 1]);
        assert_eq!(tallied.winners, [1, 2, NONE, NONE]);
        // Two of four votes are not more than half of them.
        assert_eq!(tally(&[0, 0, 1, 2], &[4], 3, 0.5).unwrap().winners, [NONE]);
        assert_eq!(tally(&[0, 0, 1, 2], &[4], 3, 0.0).unwrap().winners, [0]);
        assert_eq!(tally(&[], &[], 3, 0.0).unwrap(), Tally { counts: vec![], winners: vec![] });
    }

    #[test]
    fn wrong_votes_are_named() {
        let wrong = tally(&[0, 3], &[1, 1], 3, 0.0).unwrap_err();
        assert_eq!(wrong.to_string(), "a vote of question 1: 3 is outside 0..2");
        assert_eq!(tally(&[0, 1], &[1], 3, 0.0).unwrap_err().kind(), Kind::Mismatch);
        let many = tally(&[], &[0; 8], usize::MAX / 8, 0.0).unwrap_err();
        assert_eq!(many.kind(), Kind::OutOfMemory);
    }
}
