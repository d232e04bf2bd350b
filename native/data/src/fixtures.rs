//! Test data: replays made in code with peppi's writer, for the tests of this crate and of Elixir.
//!
//! Every value is a function of player and frame ([`state`], [`input`]), so that a test can say
//! what must come back. Inputs are random, and the action state after frame f tells the main stick
//! of frame f: what would leak a label is in the data, for the tests that prove that it does not.

use std::fs;
use std::path::Path;

use peppi::frame::immutable::Frame;
use peppi::frame::mutable::{Data, Frame as Frames};
use peppi::game::immutable::Game;
use peppi::game::shift_jis::MeleeString;
use peppi::game::{
    self, Bytes, EndMethod, Language, Match, Netplay, PlayerEnd, PlayerType, Port, Scene, Start,
    Ucf, port_occupancy,
};
use peppi::io::slippi::{Slippi, Version};
use sconce_core::rng::philox;
use sconce_core::{Error, Result};

pub const FIRST_FRAME: i32 = -123;
pub const ICE_CLIMBERS: u8 = 14;
/// The action after frame f is this plus the main stick's bucket of frame f.
pub const ACTION_BASE: u16 = 100;

/// A replay to be made.
#[derive(Debug, Clone)]
pub struct Fixture {
    pub version: (u8, u8),
    pub stage: u16,
    pub players: Vec<Player>,
    pub frames: usize,
    /// Every so many frames two are played twice, the first time with other values; 0 for never.
    pub rollback_every: usize,
    /// Items on every frame, six of them, listed against the order of their ids.
    pub items: bool,
    /// Action ids beyond every table now and then.
    pub odd_ids: bool,
    pub seed: u32,
}

#[derive(Debug, Clone, Copy)]
pub struct Player {
    /// External id, as chosen.
    pub character: u8,
    pub cpu: bool,
}

/// A character after a frame, under peppi's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    pub character: u8,
    pub state: u16,
    pub x: f32,
    pub y: f32,
    pub direction: f32,
    pub percent: f32,
    pub shield: f32,
    pub stocks: u8,
    pub state_age: f32,
    pub in_hitstun: bool,
    pub misc_as: f32,
    pub airborne: u8,
    pub jumps: u8,
    pub hurtbox_state: u8,
    /// Own x in the air, own y, knock-back x and y, own x on the ground.
    pub velocities: [f32; 5],
}

/// The input of a frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input {
    /// As the pad's mask has them.
    pub buttons: u16,
    /// Joystick x and y, C-stick x and y, each -1..1.
    pub sticks: [f32; 4],
    pub trigger: f32,
}

impl Default for Fixture {
    fn default() -> Self {
        let player = |character| Player { character, cpu: false };
        Fixture {
            version: (3, 14),
            stage: 32,
            players: vec![player(2), player(9)],
            frames: 800,
            rollback_every: 0,
            items: false,
            odd_ids: false,
            seed: 0,
        }
    }
}

/// Four random words of a player and a frame.
fn words(seed: u32, player: usize, frame: i32) -> [u32; 4] {
    philox([frame as u32, player as u32, 0, 0], [seed, 77])
}

/// The input of a frame; the main stick's x hits one of 17 buckets in its middle.
pub fn input(seed: u32, player: usize, frame: i32) -> Input {
    let random = words(seed, player, frame);
    let stick = |word: u32| (word % 17) as f32 / 8.0 - 1.0;
    // A B X Y, Z, L, R, D-pad up, and start, which no head has.
    let mask = random[3] as u16 & 0x1F78;
    Input {
        buttons: if random[2].is_multiple_of(3) { mask } else { 0 },
        sticks: [stick(random[0]), stick(random[0] >> 8), stick(random[1]), stick(random[1] >> 8)],
        trigger: (random[2] >> 8) as u8 as f32 / 255.0,
    }
}

/// Bucket of the main stick's x.
pub fn main_x_bucket(seed: u32, player: usize, frame: i32) -> u16 {
    (words(seed, player, frame)[0] % 17) as u16
}

pub fn state(seed: u32, player: usize, frame: i32) -> State {
    let age = (frame - FIRST_FRAME) as f32;
    let side = if player == 0 { 1.0 } else { -1.0 };
    State {
        character: player as u8 + 1,
        state: ACTION_BASE + main_x_bucket(seed, player, frame),
        x: side * (20.0 + age / 16.0),
        y: age / 8.0 - 10.0,
        direction: side,
        percent: age / 4.0,
        shield: 60.0 - age / 32.0,
        stocks: 4 - (frame.rem_euclid(4)) as u8,
        state_age: frame.rem_euclid(30) as f32 - 1.0,
        in_hitstun: frame.rem_euclid(5) == 0,
        misc_as: frame.rem_euclid(40) as f32 + 1.0,
        airborne: frame.rem_euclid(2) as u8,
        jumps: frame.rem_euclid(3) as u8,
        hurtbox_state: frame.rem_euclid(7).min(2) as u8,
        velocities: [0.5, -0.25, 1.5, -2.0, 0.75].map(|v| side * v + age / 256.0),
    }
}

/// Nana is away every tenth frame.
pub fn nana_is_there(frame: i32) -> bool {
    frame.rem_euclid(10) != 0
}

/// Her values are those of a third and fourth player.
pub fn nana(player: usize) -> usize {
    player + 2
}

/// Type, x, y, velocity x and y, spawn id and owner (a port, or -1) of an item of a frame.
pub fn item(k: usize, frame: i32) -> (u16, [f32; 4], u32, i8) {
    let at = k as f32 * 8.0 + frame as f32 / 4.0;
    let owner = [0, 1, -1][k % 3];
    (40 + k as u16, [at, at + 1.0, 0.5 + k as f32, -0.5], 10 + k as u32, owner)
}

pub const NUM_ITEMS: usize = 6;

/// How far wrong the values of a frame are that is played again.
pub const ROLLED_BACK: i32 = 100_000;

impl Fixture {
    fn version(&self) -> Version {
        Version(self.version.0, self.version.1, 0)
    }

    /// The replay file.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let (start, version) = (self.start(), self.version());
        let frames = self.frames(&start)?;
        let game = Game {
            end: Some(self.end()),
            frames,
            start,
            metadata: None,
            gecko_codes: None,
            hash: None,
            quirks: None,
        };
        let mut bytes = Vec::new();
        peppi::io::slippi::write(&mut bytes, &game)
            .map_err(|e| Error::corrupt(format!("fixture of {version}"), e))?;
        Ok(bytes)
    }

    /// Rows as the recorder would write them: a frame, and the frame whose values it has.
    fn rows(&self) -> Vec<(i32, i32)> {
        let mut rows = Vec::new();
        for i in 0..self.frames {
            let frame = FIRST_FRAME + i as i32;
            if self.rollback_every > 0 && i % self.rollback_every == 1 && i + 1 < self.frames {
                rows.push((frame, frame + ROLLED_BACK));
                rows.push((frame + 1, frame + 1 + ROLLED_BACK));
            }
            rows.push((frame, frame));
        }
        rows
    }

    fn frames(&self, start: &Start) -> Result<Frame> {
        let version = self.version();
        let broken = |e: &dyn std::fmt::Display| Error::corrupt("fixture", e);
        let mut frames = Frames::with_capacity(self.frames, version, &port_occupancy(start));
        for (id, as_of) in self.rows() {
            frames.id.push(Some(id));
            for (p, port) in frames.ports.iter_mut().enumerate() {
                let cpu = self.players.get(p).is_some_and(|q| q.cpu);
                self.push(&mut port.leader, p, as_of, cpu, version).map_err(|e| broken(&e))?;
                match &mut port.follower {
                    Some(data) if nana_is_there(id) => {
                        self.push(data, nana(p), as_of, cpu, version).map_err(|e| broken(&e))?;
                    }
                    Some(data) => data.push_null(version),
                    None => {}
                }
            }
            self.push_scene(&mut frames, as_of, version).map_err(|e| broken(&e))?;
        }
        Ok(frames.into())
    }

    fn push(
        &self,
        data: &mut Data,
        player: usize,
        frame: i32,
        cpu: bool,
        version: Version,
    ) -> std::io::Result<()> {
        let mut state = state(self.seed, player, frame);
        if self.odd_ids && frame.rem_euclid(100) == 0 {
            state.state = 500;
        }
        if let Some(validity) = &mut data.validity {
            validity.push(true);
        }
        let input = input(self.seed, player, frame);
        data.pre.read_push(&mut &pre_bytes(&state, &input, cpu)[..], version)?;
        data.post.read_push(&mut &post_bytes(&state)[..], version)
    }

    /// What a frame has besides its players, as far as the version knows it.
    fn push_scene(
        &self,
        frames: &mut Frames,
        frame: i32,
        version: Version,
    ) -> std::result::Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        if let Some(start) = &mut frames.start {
            start.read_push(&mut &[0; 8][..], version).map_err(text)?;
        }
        if let Some(end) = &mut frames.end {
            end.read_push(&mut &[0; 4][..], version).map_err(text)?;
        }
        let count = if self.items { NUM_ITEMS } else { 0 };
        if let Some(item) = &mut frames.item {
            for k in (0..count).rev() {
                item.read_push(&mut &item_bytes(k, frame)[..], version).map_err(text)?;
            }
        }
        let none = [
            &mut frames.fod_platform_offset,
            &mut frames.dreamland_whispy_offset,
            &mut frames.stadium_transformation_offset,
        ];
        for offsets in none.into_iter().flatten() {
            offsets.try_push(0).map_err(|e| e.to_string())?;
        }
        match &mut frames.item_offset {
            Some(offsets) => offsets.try_push(count as i32).map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }

    fn start(&self) -> Start {
        let version = self.version();
        let players = self.players.iter().enumerate().map(|(i, p)| self.player(i, p)).collect();
        Start {
            slippi: Slippi { version },
            bitfield: [0; 4],
            is_raining_bombs: false,
            is_teams: false,
            item_spawn_frequency: -1,
            self_destruct_score: -1,
            stage: self.stage,
            timer: 480,
            item_spawn_bitfield: [0; 5],
            damage_ratio: 1.0,
            players,
            random_seed: self.seed,
            bytes: Bytes(blank_start(version)),
            is_pal: Some(false),
            is_frozen_ps: Some(false),
            scene: Some(Scene { minor: 2, major: 8 }),
            language: Some(Language::English),
            r#match: Some(Match { id: "fixture".into(), game: 1, tiebreaker: 0 }),
        }
    }

    fn player(&self, i: usize, player: &Player) -> game::Player {
        let port = [Port::P1, Port::P2, Port::P3, Port::P4][i % 4];
        let text = |s: String| MeleeString(s);
        game::Player {
            port,
            character: player.character,
            r#type: if player.cpu { PlayerType::Cpu } else { PlayerType::Human },
            stocks: 4,
            costume: 0,
            team: None,
            handicap: 9,
            bitfield: 0,
            cpu_level: player.cpu.then_some(9),
            damage_start: 0,
            damage_spawn: 0,
            offense_ratio: 1.0,
            defense_ratio: 1.0,
            model_scale: 1.0,
            ucf: Some(Ucf { dash_back: None, shield_drop: None }),
            name_tag: Some(text(format!("TAG{i}"))),
            netplay: Some(Netplay {
                name: text(format!("Player {i}")),
                code: text(format!("P#{i}")),
                suid: Some(String::new()),
            }),
        }
    }

    fn end(&self) -> game::End {
        let version = self.version();
        let size = match () {
            () if version.gte(3, 13) => 6,
            () if version.gte(2, 0) => 2,
            () => 1,
        };
        let place = |port, placement| PlayerEnd { port, placement };
        game::End {
            method: EndMethod::Game,
            bytes: Bytes(vec![0; size]),
            lras_initiator: Some(None),
            players: Some(vec![place(Port::P1, 0), place(Port::P2, 1)]),
        }
    }
}

/// The start block's bytes, every port empty; the writer fills in what it knows.
fn blank_start(version: Version) -> Vec<u8> {
    const PARTS: [((u8, u8), usize); 9] = [
        ((0, 1), 320),
        ((1, 0), 32),
        ((1, 3), 64),
        ((1, 5), 1),
        ((2, 0), 1),
        ((3, 7), 2),
        ((3, 9), 164),
        ((3, 11), 116),
        ((3, 12), 1),
    ];
    let known = PARTS.iter().filter(|(since, _)| version.gte(since.0, since.1));
    let size: usize = known.map(|p| p.1).sum();
    let mut bytes = vec![0; size + if version.gte(3, 14) { 59 } else { 0 }];
    // Four bytes of version, then 0x60 to the first player; the second byte of each is the kind.
    const EMPTY: u8 = 3;
    for player in 0..game::MAX_PLAYERS {
        bytes[4 + 0x60 + 36 * player + 1] = EMPTY;
    }
    bytes
}

fn be(bytes: &mut Vec<u8>, floats: &[f32]) {
    floats.iter().for_each(|f| bytes.extend(f.to_be_bytes()));
}

/// A pre-frame row of the newest version; older ones read as far as they know it.
fn pre_bytes(state: &State, input: &Input, cpu: bool) -> Vec<u8> {
    const A: u32 = 1 << 8;
    const Z: u16 = 1 << 4;
    let mut b = Vec::new();
    b.extend(0u32.to_be_bytes());
    b.extend(state.state.to_be_bytes());
    be(&mut b, &[state.x, state.y, state.direction]);
    be(&mut b, &input.sticks);
    be(&mut b, &[input.trigger]);
    // The game turns Z into A as well, unless there is no pad at all.
    let z_as_a = if input.buttons & Z != 0 && !cpu { A } else { 0 };
    b.extend((u32::from(input.buttons) | z_as_a).to_be_bytes());
    b.extend(if cpu { 0 } else { input.buttons }.to_be_bytes());
    be(&mut b, &[0.0, 0.0]);
    b.push(0);
    be(&mut b, &[state.percent]);
    b.extend([0; 3]);
    b
}

fn post_bytes(state: &State) -> Vec<u8> {
    let mut b = vec![state.character];
    b.extend(state.state.to_be_bytes());
    be(&mut b, &[state.x, state.y, state.direction, state.percent, state.shield]);
    b.extend([0, 0, 6, state.stocks]);
    be(&mut b, &[state.state_age]);
    b.extend([0, 0, 0, if state.in_hitstun { 2 } else { 0 }, 0]);
    be(&mut b, &[state.misc_as]);
    b.push(state.airborne);
    b.extend(0u16.to_be_bytes());
    b.extend([state.jumps, 0, state.hurtbox_state]);
    be(&mut b, &state.velocities);
    be(&mut b, &[0.0]);
    b.extend([0; 8]);
    b
}

fn item_bytes(k: usize, frame: i32) -> Vec<u8> {
    let (kind, [x, y, speed_x, speed_y], id, owner) = item(k, frame);
    let mut b = kind.to_be_bytes().to_vec();
    b.push(0);
    be(&mut b, &[1.0, speed_x, speed_y, x, y]);
    b.extend(0u16.to_be_bytes());
    be(&mut b, &[100.0]);
    b.extend(id.to_be_bytes());
    b.extend([0; 4]);
    b.push(owner as u8);
    b.extend([0; 2]);
    b
}

/// Writes one replay of each kind into a folder; those that an import refuses have its reason in
/// their name.
pub fn write_all(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let usual = Fixture::default();
    let climbers = Player { character: ICE_CLIMBERS, cpu: false };
    let cpu = Player { character: 9, cpu: true };
    let three = [usual.players.clone(), vec![cpu]].concat();
    let made = |seed| Fixture { seed, ..usual.clone() };
    let all = [
        ("valid", made(1)),
        ("valid_2", made(2)),
        ("old_1_0", Fixture { version: (1, 0), ..made(3) }),
        ("old_2_0", Fixture { version: (2, 0), ..made(4) }),
        ("rolled_back", Fixture { rollback_every: 7, ..made(5) }),
        ("items", Fixture { items: true, ..made(6) }),
        ("nana", Fixture { players: vec![climbers, usual.players[1]], ..made(7) }),
        ("cpu", Fixture { players: vec![usual.players[0], cpu], ..made(8) }),
        ("newest", Fixture { version: (3, 18), odd_ids: true, ..made(9) }),
        ("too_short", Fixture { frames: 599, ..made(10) }),
        ("not_two_players", Fixture { players: three, ..made(11) }),
    ];
    for (name, fixture) in &all {
        write(dir, name, &fixture.bytes()?)?;
    }
    let bytes = made(12).bytes()?;
    write(dir, "truncated", bytes.get(..bytes.len() / 2).unwrap_or_default())?;
    write(dir, "corrupt", &broken(bytes))
}

/// A replay whose frames do not follow each other, at which peppi panics.
pub fn broken(mut bytes: Vec<u8>) -> Vec<u8> {
    let middle = bytes.len() / 2;
    for byte in bytes.iter_mut().skip(middle).take(4096) {
        *byte = 0x37;
    }
    bytes
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = dir.join(name).with_extension("slp");
    fs::write(&path, bytes).map_err(|source| Error::Io { path, source })
}
