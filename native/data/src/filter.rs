//! Selects games, and the views of their players, by what they contain.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use sconce_tensor::{Error, Result, pool};
use serde::{Deserialize, Serialize};

use crate::game::GameInfo;
use crate::quality::{Figures, Numbers};
use crate::refusal::{Reason, Refusal};
use crate::schema::Schema;
use crate::view::View;

/// Conditions on games and on the views of their players. `Default` accepts all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// Stage ids; empty for any.
    pub stages: Vec<u16>,
    /// Own characters, internal ids after the first frame; empty for any.
    pub characters: Vec<u8>,
    /// Own player tags; empty for any.
    pub players: Vec<String>,
    /// Minimum frames of a game.
    pub min_frames: Option<usize>,
    /// Maximum frames of a game.
    pub max_frames: Option<usize>,
    /// Minimum damage in percent that the player dealt.
    pub min_damage_dealt: f32,
    /// Minimum damage in percent that the player took.
    pub min_damage_taken: f32,
    /// Whether all players of a game must be human.
    pub humans: bool,
    /// Whether a game with the same values as an earlier one is left out.
    pub unique: bool,
    /// Minimum quality of a game, from 0 to 100: the mean of four shares in percent, each at most 1. They are the
    /// frames over 3000, and of the player with less the damage dealt over 100, the frames with a button or a moved
    /// main stick over a quarter of all, and the different action states over 50.
    pub min_quality: f32,
    /// Whether both players' views of a game are used. Otherwise only that of the lowest port is, among those that pass
    /// the other conditions.
    pub dual_port: bool,
}

impl Default for Filter {
    fn default() -> Self {
        Filter {
            stages: vec![],
            characters: vec![],
            players: vec![],
            min_frames: None,
            max_frames: None,
            min_damage_dealt: 0.0,
            min_damage_taken: 0.0,
            humans: false,
            unique: false,
            min_quality: 0.0,
            dual_port: true,
        }
    }
}

/// Counts of views that were left out, by reason.
pub type LeftOut = BTreeMap<Reason, usize>;

impl Filter {
    /// Returns the views that meet all conditions, and counts the others by the first condition that they do not meet.
    ///
    /// # Errors
    /// `NotFound` if no view of several is left; `Mismatch` for a condition on replays if the views are of another
    /// game.
    pub fn select(&self, views: Vec<View>) -> Result<(Vec<View>, LeftOut)> {
        if let Some(view) = views.first() {
            self.check(view.schema())?;
        }
        let figures = self.figures(&views)?;
        let (mut games, mut left_out) = (HashMap::new(), LeftOut::new());
        let some = !views.is_empty();
        let mut kept = vec![];
        for view in views {
            let (info, figures) = (view.info(), figures.get(&view.game()));
            let refusal = self
                .refuse_game(info, figures)
                .or_else(|| self.refuse_copy(&view, &mut games))
                .or_else(|| self.refuse_player(info, view.player(), figures));
            match refusal {
                Some(refusal) => *left_out.entry(refusal.reason).or_default() += 1,
                None => kept.push(view),
            }
        }
        if !self.dual_port {
            kept = one_port(kept, &mut left_out);
        }
        if kept.is_empty() && some {
            let counts = left_out.iter().map(|(reason, n)| format!("{n} {}", reason.name()));
            let counts = counts.collect::<Vec<_>>().join(", ");
            return Err(Error::not_found(format!("a view that the filters keep ({counts})")));
        }
        Ok((kept, left_out))
    }

    /// Refuses a game that is being imported, if it or all its players' views do not meet the conditions.
    pub(crate) fn refuse<N: Numbers + ?Sized>(
        &self,
        info: &GameInfo,
        numbers: &N,
    ) -> Option<Refusal> {
        let figures = self.reads_frames().then(|| Figures::of(numbers));
        let figures = figures.as_ref();
        self.refuse_game(info, figures).or_else(|| {
            let players = 0..info.characters.len().max(1);
            let mut refusals = players.map(|player| self.refuse_player(info, player, figures));
            let first = refusals.next().flatten();
            if refusals.any(|refusal| refusal.is_none()) { None } else { first }
        })
    }

    /// Checks that games of this schema can meet the conditions.
    pub(crate) fn check(&self, schema: &Schema) -> Result<()> {
        let of_replays = [
            ("stages", !self.stages.is_empty()),
            ("humans", self.humans),
            ("min_damage_dealt", self.min_damage_dealt > 0.0),
            ("min_damage_taken", self.min_damage_taken > 0.0),
            ("min_quality", self.min_quality > 0.0),
        ];
        // Frames that were met in play have the stage of their game, but are no replay.
        let is_known = |name: &str| match name {
            "stages" => schema.game().name() == "melee",
            _ => schema.name() == "melee",
        };
        let given = of_replays.into_iter().find(|(name, given)| *given && !is_known(name));
        match given {
            Some((name, _)) => Err(Error::mismatch(name, "a corpus of replays", schema.name())),
            None => Ok(()),
        }
    }

    /// Whether conditions need the frames of games.
    fn reads_frames(&self) -> bool {
        self.min_damage_dealt > 0.0 || self.min_damage_taken > 0.0 || self.min_quality > 0.0
    }

    /// The figures of all games, by their index, if conditions need them.
    fn figures(&self, views: &[View]) -> Result<HashMap<usize, Figures>> {
        let mut games: Vec<&View> = views.iter().filter(|_| self.reads_frames()).collect();
        games.sort_by_key(|view| view.game());
        games.dedup_by_key(|view| view.game());
        let found: Vec<OnceLock<Figures>> = games.iter().map(|_| OnceLock::new()).collect();
        pool::for_each(games.len(), |i| {
            let (Some(view), Some(found)) = (games.get(i), found.get(i)) else { return };
            let shard = view.shard();
            let _ = found.set(shard.reading(|| Figures::of(shard)));
        });
        games.iter().try_for_each(|view| view.verify())?;
        let found = found.into_iter().filter_map(OnceLock::into_inner);
        Ok(games.iter().map(|view| view.game()).zip(found).collect())
    }

    fn refuse_game(&self, info: &GameInfo, figures: Option<&Figures>) -> Option<Refusal> {
        if !self.stages.is_empty() && !self.stages.contains(&info.stage) {
            return Some(Refusal::new(Reason::Stage, format!("stage {}", info.stage)));
        }
        if self.humans && info.kinds.iter().any(|kind| kind != "human") {
            return Some(Refusal::new(Reason::NotHuman, info.kinds.join(" and ")));
        }
        let frames = info.frames;
        if let Some(least) = self.min_frames.filter(|least| frames < *least) {
            return Some(Refusal::new(
                Reason::TooShort,
                format!("{frames} frames of at least {least}"),
            ));
        }
        if let Some(most) = self.max_frames.filter(|most| frames > *most) {
            return Some(Refusal::new(
                Reason::TooLong,
                format!("{frames} frames of at most {most}"),
            ));
        }
        let quality = figures.map_or(0.0, Figures::quality);
        (quality < self.min_quality).then(|| {
            let detail = format!("{quality:.1} of at least {}", self.min_quality);
            Refusal::new(Reason::Quality, detail)
        })
    }

    /// Refuses the views of a game whose values equal those of an earlier one. `games` has the games so far by the
    /// digest of their values.
    fn refuse_copy(&self, view: &View, games: &mut HashMap<String, usize>) -> Option<Refusal> {
        let contents = &view.info().contents;
        if !self.unique || contents.is_empty() {
            return None;
        }
        let first = *games.entry(contents.clone()).or_insert(view.game());
        (first != view.game())
            .then(|| Refusal::new(Reason::Duplicate, "the same values as another game"))
    }

    fn refuse_player(
        &self,
        info: &GameInfo,
        player: usize,
        figures: Option<&Figures>,
    ) -> Option<Refusal> {
        let character = info.characters.get(player);
        if !self.characters.is_empty() && !character.is_some_and(|id| self.characters.contains(id))
        {
            let detail = character.map_or("none".into(), |id| format!("character {id}"));
            return Some(Refusal::new(Reason::Character, detail));
        }
        let tag = info.tags.get(player);
        if !self.players.is_empty() && !tag.is_some_and(|tag| self.players.contains(tag)) {
            return Some(Refusal::new(Reason::Player, tag.cloned().unwrap_or_default()));
        }
        let figures = figures?;
        let (dealt, taken) = (figures.dealt(player), figures.taken(player));
        (dealt < self.min_damage_dealt || taken < self.min_damage_taken)
            .then(|| Refusal::new(Reason::Damage, format!("dealt {dealt:.1}, took {taken:.1}")))
    }
}

/// Keeps one view of each game: that of the lowest port, the first of several. The digest tells games apart, because in
/// a corpus of ExPhil the players' views of a game are games of their own with the same digest.
fn one_port(views: Vec<View>, left_out: &mut LeftOut) -> Vec<View> {
    let port = |view: &View| view.info().ports.get(view.player()).copied();
    let mut lowest: HashMap<&str, (Option<u8>, usize)> = HashMap::new();
    for (i, view) in views.iter().enumerate() {
        let here = (port(view), i);
        let known = lowest.entry(&view.info().digest).or_insert(here);
        *known = (*known).min(here);
    }
    let kept: Vec<bool> = views
        .iter()
        .enumerate()
        .map(|(i, view)| lowest.get(view.info().digest.as_str()).is_some_and(|(_, own)| *own == i))
        .collect();
    drop(lowest);
    let all = views.len();
    let views: Vec<View> =
        views.into_iter().zip(kept).filter_map(|(view, kept)| kept.then_some(view)).collect();
    if views.len() < all {
        left_out.insert(Reason::Port, all - views.len());
    }
    views
}
