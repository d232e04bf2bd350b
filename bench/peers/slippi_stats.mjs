// Prints the statistics of replays by slippi-js as JSON: an object for each replay.
//
//   npm install --prefix FOLDER @slippi/slippi-js@9.1.2
//   node slippi_stats.mjs FOLDER REPLAY...
//
// FOLDER is outside of this repository.
import { createRequire } from "node:module";
import path from "node:path";

const [folder, ...replays] = process.argv.slice(2);
const require = createRequire(path.resolve(folder, "package.json"));
const { SlippiGame } = require("@slippi/slippi-js/node");

function stats(file) {
  try {
    const stats = new SlippiGame(file).getStats();
    if (!stats) return { file, error: "no statistics" };
    const conversions = stats.conversions.map((c) => ({
      // Their playerIndex is the victim.
      player: c.lastHitBy,
      start: c.startFrame,
      end: c.endFrame ?? null,
      opening: c.openingType,
      start_percent: c.startPercent,
      end_percent: c.endPercent ?? c.currentPercent,
      damage: c.moves.reduce((sum, move) => sum + move.damage, 0),
      moves: c.moves.length,
      kill: c.didKill,
    }));
    const stocks = stats.stocks.map((s) => ({
      player: s.playerIndex,
      count: s.count,
      start: s.startFrame,
      end: s.endFrame ?? null,
      end_percent: s.endPercent ?? s.currentPercent,
    }));
    const overall = stats.overall.map((o) => ({
      player: o.playerIndex,
      openings: o.conversionCount,
      kills: o.killCount,
      damage: o.totalDamage,
      openings_per_kill: o.openingsPerKill.ratio,
      damage_per_opening: o.damagePerOpening.ratio,
      neutral_win_ratio: o.neutralWinRatio.ratio,
    }));
    return { file, conversions, stocks, overall };
  } catch (error) {
    return { file, error: String(error.message) };
  }
}

process.stdout.write(JSON.stringify(replays.map(stats)));
