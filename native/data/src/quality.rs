//! Figures of a recorded game by which replays are filtered: damage, activity, variety, and a score of quality.

use std::collections::HashSet;

use crate::column::Column;
use crate::melee::place;
use crate::shard::Shard;

/// Numbers of a game of replays, by column and row.
pub(crate) trait Numbers {
    /// A value; 0 past the end.
    fn number(&self, column: usize, row: usize) -> f32;
    /// Count of rows.
    fn rows(&self) -> usize;
}

impl Numbers for [Column] {
    fn number(&self, column: usize, row: usize) -> f32 {
        self.get(column).and_then(|column| column.get(row)).unwrap_or(0.0)
    }

    fn rows(&self) -> usize {
        self.get(place::FRAME).map_or(0, Column::len)
    }
}

/// Must be read inside [`Shard::reading`].
impl Numbers for Shard {
    fn number(&self, column: usize, row: usize) -> f32 {
        self.get(column, row)
    }

    fn rows(&self) -> usize {
        self.frames()
    }
}

/// Frames of a game of full length: 50 seconds.
const FULL_FRAMES: f32 = 3000.0;
/// Damage in percent that each player of a full game deals.
const FULL_DAMAGE: f32 = 100.0;
/// Share of the frames on which each player of a full game gives an input.
const FULL_ACTIVITY: f32 = 0.25;
/// Different action states of each player of a full game.
const FULL_ACTIONS: f32 = 50.0;
/// A stick farther from its centre than half a bucket of 17 gives an input.
const OFF_CENTRE: f32 = 1.0 / 32.0;

/// Figures of a game.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    rows: usize,
    players: [PlayerFigures; 2],
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct PlayerFigures {
    /// Sum of the increases of the player's percent.
    taken: f32,
    /// Share of the frames with a button or with the main stick off its centre.
    active: f32,
    /// Count of different action states.
    actions: usize,
}

impl Figures {
    pub(crate) fn of<N: Numbers + ?Sized>(numbers: &N) -> Self {
        let rows = numbers.rows();
        Figures { rows, players: [0, 1].map(|player| PlayerFigures::of(numbers, player, rows)) }
    }

    fn player(&self, player: usize) -> &PlayerFigures {
        &self.players[player & 1]
    }

    /// Damage in percent that a player took. Lost stocks do not reduce it.
    pub(crate) fn taken(&self, player: usize) -> f32 {
        self.player(player).taken
    }

    /// Damage in percent that a player dealt, which is the damage that the other player took, from any source.
    pub(crate) fn dealt(&self, player: usize) -> f32 {
        self.player(1 - (player & 1)).taken
    }

    /// The quality of the game from 0 to 100: the mean of four shares of a full game, in percent. The shares are those
    /// of length, damage, activity and variety; the last three are those of the player with less.
    pub(crate) fn quality(&self) -> f32 {
        let least = |of: fn(&PlayerFigures) -> f32| {
            let [a, b] = &self.players;
            of(a).min(of(b)).clamp(0.0, 1.0)
        };
        let shares = [
            (self.rows as f32 / FULL_FRAMES).min(1.0),
            least(|player| player.taken / FULL_DAMAGE),
            least(|player| player.active / FULL_ACTIVITY),
            least(|player| player.actions as f32 / FULL_ACTIONS),
        ];
        100.0 * shares.iter().sum::<f32>() / shares.len() as f32
    }
}

impl PlayerFigures {
    fn of<N: Numbers + ?Sized>(numbers: &N, player: usize, rows: usize) -> Self {
        let (state, input) = (place::player(player), place::controller(player));
        let (mut taken, mut active, mut actions) = (0.0_f64, 0_usize, HashSet::new());
        let mut before = None;
        for row in 0..rows {
            let percent = numbers.number(state + place::PERCENT, row);
            taken += f64::from((percent - before.unwrap_or(percent)).max(0.0));
            before = Some(percent);
            actions.insert(numbers.number(state + place::ACTION, row) as u32);
            let off = |axis: usize| (numbers.number(input + axis, row) - 0.5).abs() > OFF_CENTRE;
            active += usize::from(numbers.number(input, row) > 0.0 || off(1) || off(2));
        }
        let active = active as f32 / rows.max(1) as f32;
        PlayerFigures { taken: taken as f32, active, actions: actions.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::melee::columns;

    /// A game of `rows` rows with these values of a column.
    fn game(rows: usize, given: &[(usize, &dyn Fn(usize) -> f32)]) -> Vec<Column> {
        let column = |(at, (_, dtype)): (usize, &(String, _))| {
            let of = given.iter().find(|(column, _)| *column == at);
            let centred = [1, 2].map(|axis| [0, 1].map(|p| place::controller(p) + axis));
            let rest = if centred.as_flattened().contains(&at) { 0.5 } else { 0.0 };
            Column::collect(*dtype, (0..rows).map(|row| of.map_or(rest, |(_, of)| of(row))))
        };
        columns().iter().enumerate().map(column).collect()
    }

    #[test]
    fn damage_is_the_sum_of_increases_over_all_stocks() {
        let percent = [0.0, 10.0, 10.0, 35.5, 0.0, 0.0, 7.0];
        let game = game(7, &[(place::player(1) + place::PERCENT, &|row| percent[row])]);
        let figures = Figures::of(game.as_slice());
        assert_eq!((figures.taken(1), figures.dealt(0)), (42.5, 42.5));
        assert_eq!((figures.taken(0), figures.dealt(1)), (0.0, 0.0));
    }

    #[test]
    fn quality_is_the_mean_of_four_shares_of_a_full_game() {
        let still = game(1500, &[]);
        // Half the length, no damage, no input, one action state of fifty.
        let expected = 100.0 * (0.5 + 0.0 + 0.0 + 0.02) / 4.0;
        assert!((Figures::of(still.as_slice()).quality() - expected).abs() < 1e-3);
        let (damage, action) = (|row: usize| row as f32 / 20.0, |row: usize| (row % 60) as f32);
        let button = |row: usize| f32::from(u8::from(row.is_multiple_of(8)));
        let stick = |row: usize| if row % 8 == 4 { 0.9 } else { 0.5 };
        let mut given: Vec<(usize, &dyn Fn(usize) -> f32)> = vec![];
        for player in [0, 1] {
            let (state, input) = (place::player(player), place::controller(player));
            given.push((state + place::PERCENT, &damage));
            given.push((state + place::ACTION, &action));
            given.push((input, &button));
            given.push((input + 2, &stick));
        }
        let full = game(3000, &given);
        assert!((Figures::of(full.as_slice()).quality() - 100.0).abs() < 1e-3);
        // The player with less counts.
        given.retain(|(column, _)| *column != place::controller(1));
        let half = Figures::of(game(3000, &given).as_slice()).quality();
        assert!((half - 87.5).abs() < 1e-3, "{half}");
    }
}
