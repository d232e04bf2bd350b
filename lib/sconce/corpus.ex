defmodule Sconce.Corpus do
  alias Sconce.{Error, Game, Native, Options}
  alias Sconce.Corpus.{Build, Catalogue, Check, Embedded, Import, Names, Reading}
  alias Sconce.Policy.Spec

  @moduledoc """
  Games on disk, imported from replays once and read by many training runs.

  A corpus is a folder with a manifest and one file for each game, which training maps into memory. It contains the
  values of the replays, not the input of a policy, so that one corpus serves every embedding, delay, window and mirror.

      {:ok, corpus} = Sconce.Corpus.import("replays", into: "corpus")
      corpus
      #Sconce.Corpus<melee · 14 games · 128,559 frames · Fox 12, Mewtwo 5, Marth 4 … · 37.6 MB>

  `fields/0` lists the values that are read from a replay, with the first version of the format and the fallback for
  older files. `build/3` makes a corpus of other games from vectors and labels, or from the rows of a `Sconce.Game`.

  ## Compressed games

  With `compress: true` the games that are written have segments of up to 1,024 frames, which are compressed by LZ4, a
  checksum each. Batches are the same to the bit. A batch restores the segments of its windows; of those a corpus keeps up
  to 64 MiB. A compressed corpus is for one that is larger than memory: the disk is read less.
  """

  @enforce_keys [:handle, :dir, :info]
  defstruct [:handle, :dir, :info, :report]

  @typedoc """
  An open corpus. `report` is the report of the import or of the `Sconce.Dagger.append/4` that made this struct, or nil.
  """
  @type t :: %__MODULE__{
          handle: reference,
          dir: Path.t(),
          info: info,
          report: report | Sconce.Dagger.report() | nil
        }

  @typedoc """
  The summary of a corpus. `views` counts each player of each game; `characters`, `stages` and `versions` are pairs of
  value and count, the most frequent first; `other_ids` counts ids that have no row in their embedding table. In a
  `relabelled` corpus, which `Sconce.Dagger` makes, the labels are an expert's.
  """
  @type info :: %{
          schema: :melee | {:vector, pos_integer} | Game.t(),
          relabelled: boolean,
          games: non_neg_integer,
          frames: non_neg_integer,
          views: non_neg_integer,
          view_frames: non_neg_integer,
          bytes: non_neg_integer,
          characters: [{non_neg_integer, pos_integer}],
          stages: [{non_neg_integer, pos_integer}],
          versions: [{String.t(), pos_integer}],
          other_ids: map
        }

  @typedoc """
  The report of an import: the number of games `added`, `known` from before, and `adopted` from a killed import;
  `skipped` files with `reason` and `detail`; `interrupted` replays, which were open when an earlier import died;
  `frames`, `bytes` and `other_ids` of the added games.
  """
  @type report :: %{
          added: non_neg_integer,
          known: non_neg_integer,
          adopted: non_neg_integer,
          skipped: [%{file: Path.t(), reason: reason, detail: String.t()}],
          interrupted: [%{file: String.t(), digest: String.t(), deaths: pos_integer}],
          frames: non_neg_integer,
          bytes: non_neg_integer,
          other_ids: map,
          seconds: float
        }

  @reasons Catalogue.reasons()
  @type reason :: unquote(Enum.reduce(@reasons, &{:|, [], [&1, &2]}))

  @doc """
  Adds replays to the corpus in `:into` and opens it.

  `paths` is a replay, a folder that is searched for `.slp` files, or a list of both. Native threads read the views of
  both players of each game, and only new games are added.

  Unusable files are skipped and listed in `corpus.report.skipped`, with a reason of
  #{Enum.map_join(@reasons, ", ", &"`#{inspect(&1)}`")}. If an import ends early, every finished game is kept, and the
  next import continues. The death of the caller cancels an import. An import reads and hashes the existing games, and
  imports a damaged one again.

  | kind of error | cause |
  |---|---|
  | `:io` | a full disk, for example |
  | `:busy` | another import into this corpus is running |
  | `:not_found` | none of the files could be kept; no corpus is made, and `details` have `skipped` |
  | `:mismatch` | the folder `:into` contains something other than a corpus |

  ## Filters

  Games that the filters leave out are skipped with the reason `:stage`, `:character`, `:too_short`, `:too_long`,
  `:damage`, `:not_human`, `:quality` or `:duplicate`; a later import reads them again. A run of `Sconce.Trainer` has the
  same filters, so that a corpus may keep all games.

  The quality of a game is a number from 0 to 100, the mean of four shares in percent, each at most 100:

  | share | full |
  |---|---|
  | length | 3000 frames, 50 seconds |
  | damage that the player with less dealt | 100 percent |
  | frames on which the player with fewer holds a button or moves the main stick | a quarter of all frames |
  | different action states of the player with fewer | 50 |

  Damage is the sum of the increases of a player's percent. The damage that a player dealt is that which the other
  player took from any source.

  ## Dead imports

  The file `journal` in the folder names the open replays. If an import dies with its VM, the next one reads these
  replays last and one at a time, so that a second death has a known cause, and reports them as `interrupted`. A replay
  that was open at two deaths is skipped as `:fatal`, unless `:retry` is set.

  ## Other games

  With `:game` each file is one game, with one row for each frame, oldest first: the frame and the input that answers
  it. The first line of a CSV file has `Sconce.Game.columns/1` in any order; other columns are ignored. A line of a
  `.jsonl` file is an object with these keys; `buttons.jump` may also be the key `jump` of an object `buttons`, or a
  name in a list `buttons`. A field with a default may be missing. The first file decides which of these columns exist:

  | column | meaning |
  |---|---|
  | `reward` | reward of the input |
  | `end` | in the last row: 1 if the game ended, 0 if it was truncated |
  | `weight` | weight of the frame in the loss |
  | `log_likelihood` | log probability of the input under the player that chose it |

  A file with an error is skipped as a whole, and the reason names line and column. Files are streamed; a line has at
  most 1 MiB.

  #{Catalogue.docs(:import)}

      iex> dir = Path.join(System.tmp_dir!(), "sconce-import-" <> System.pid())
      iex> File.mkdir_p!(dir)
      iex> File.write!(Path.join(dir, "game.csv"), "x,step\\n0.5,1\\n0.25,2\\n")
      iex> walk = Sconce.Game.new!(name: :walk, fields: [x: [type: :number]], input: [step: [type: {:choice, 3}]])
      iex> {:ok, corpus} = Sconce.Corpus.import(dir, game: walk, into: Path.join(dir, "corpus"))
      iex> {corpus.report.added, corpus.report.frames, corpus.report.skipped}
      {1, 2, []}
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec import(Path.t() | [Path.t()], keyword) :: {:ok, t} | {:error, Error.t()}
  def import(paths, opts) do
    with {:ok, into, report} <- Import.run(paths, opts),
         {:ok, corpus} <- open(into),
         do: {:ok, %{corpus | report: report}}
  end

  @doc """
  Makes a corpus of exactly these games and opens it. A corpus of the same schema in `:into` is replaced.

  With the schema `{:vector, n}` a game is `{x, labels}`. `x` has `n` values for each frame. `labels` has, for each
  frame, one class for each `{:categorical, k}`, `k` bits for each `{:bernoulli, k}` and `k` real values for each
  `{:gaussian, k, low, high}`. Both are a binary (little-endian; `x` in f32, labels in u16, or in f32 if there is a
  Gaussian head), a list of any nesting, or an Nx tensor. The label of a frame is the action that answers it. Any other
  game raises `ArgumentError` with its index.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-build-" <> System.pid())
      iex> games = [{[0.0, 0.5, 1.0], [0, 1, 1]}, {[1.0, 0.5], [1, 1]}]
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, games, into: dir, heads: [go: {:bernoulli, 1}])
      iex> {corpus.info.games, corpus.info.frames}
      {2, 5}
      iex> File.rm_rf!(dir) != []
      true

  With a `Sconce.Game` as the schema, `games` is an enumerable of games, and a game an enumerable of rows: maps with
  `frame`, the `input` that answers it, and the keys of `:columns`. Games are written one after the other, so that a
  stream of games takes the memory of one game.

      iex> walk = Sconce.Game.new!(name: :walk, fields: [x: [type: :number]], input: [step: [type: {:choice, 3}]])
      iex> dir = Path.join(System.tmp_dir!(), "sconce-rows-" <> System.pid())
      iex> rows = [%{frame: %{x: 0.5}, input: %{step: 1}, reward: 0.0}, %{frame: %{x: 0.25}, input: %{step: 2}, reward: 1.0}]
      iex> {:ok, corpus} = Sconce.Corpus.build(walk, [rows, rows], into: dir, columns: [:reward])
      iex> {corpus.info.games, corpus.info.frames}
      {2, 4}
      iex> File.rm_rf!(dir) != []
      true

  #{Catalogue.docs(:build)}
  """
  @spec build({:vector, pos_integer} | Game.like(), Enumerable.t(), keyword) ::
          {:ok, t} | {:error, Error.t()}
  def build(schema, games, opts),
    do: with({:ok, into} <- Build.run(schema, games, opts), do: open(into))

  @doc """
  Reads every byte of a corpus and compares the games with their recorded digests.

  Returns `games`, `bytes`, `seconds` and `unrecorded`, the number of games without a digest, which are ExPhil's or come
  from an earlier version. In such games every value must be finite and every label must be valid for its head. Damaged
  games are an error of kind `:corrupt` whose `details` have the `file`, `source` and `reason` of each as `damaged`. To
  repair them, import their sources again.

  #{Catalogue.docs(:verify)}

      iex> dir = Path.join(System.tmp_dir!(), "sconce-verify-" <> System.pid())
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, [{[0.5], [1]}], into: dir, heads: [go: {:bernoulli, 1}])
      iex> {:ok, found} = Sconce.Corpus.verify(corpus)
      iex> {found.games, found.unrecorded}
      {1, 0}
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec verify(t | Path.t(), keyword) :: {:ok, map} | {:error, Error.t()}
  def verify(corpus, opts \\ [])
  def verify(%__MODULE__{dir: dir}, opts), do: verify(dir, opts)
  def verify(dir, opts), do: Check.run(dir, opts)

  @doc """
  Opens the corpus in a folder. Only the manifest is read; games are read on use.

  A missing game file is an error of kind `:not_found`, and a game file of the wrong size one of kind `:corrupt`; both
  errors name the file and its source. `verify/2` checks the bytes.

  A folder of `embeddings.bin`, `labels.bin` and `manifest.jsonl`, as ExPhil writes them, opens read-only: its schema is
  `{:vector, n}` with the six heads of a controller, and its frames, in f32, f16 or bf16, stay on disk until they are in
  a batch. Frames of 288 numbers are those of the embedding `{:melee, layout: :packed}`, with `previous_action: false` if the first of
  them have no previous action, as ExPhil writes by default: a policy that is trained on them
  has this embedding, and plays frames of `Sconce.Frame`. Frames of another width have it if the option `:embedding` says
  so, as in `{:melee, layout: :packed, queue_depth: 4, num_delays: 9}` for 336 numbers; otherwise the policy reads
  vectors. Files that contradict their headers or the manifest are an error of kind `:corrupt`.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-open-" <> System.pid())
      iex> {:ok, _built} = Sconce.Corpus.build({:vector, 1}, [{[0.5], [1]}], into: dir, heads: [go: {:bernoulli, 1}])
      iex> {:ok, corpus} = Sconce.Corpus.open(dir)
      iex> corpus.info.schema
      {:vector, 1}
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec open(Path.t()) :: {:ok, t} | {:error, Error.t()}
  def open(dir) do
    dir = dir |> Options.path!() |> Path.expand()

    with {:ok, handle} <- Native.corpus_open(dir),
         {:ok, info} <- Reading.info(handle),
         do: {:ok, %__MODULE__{handle: handle, dir: dir, info: info}}
  end

  @doc false
  # Returns the embedding that made the vectors of a corpus of ExPhil, or nil if it is not known.
  @spec embedding(t) :: {:melee, keyword} | nil
  def embedding(%__MODULE__{dir: dir, info: %{schema: {:vector, width}}}),
    do: Embedded.embedding(Path.join(dir, "embeddings.bin"), width)

  def embedding(%__MODULE__{}), do: nil

  @doc """
  Returns the summary of a corpus.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-info-" <> System.pid())
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, [{[0.5], [1]}], into: dir, heads: [go: {:bernoulli, 1}])
      iex> corpus |> Sconce.Corpus.info() |> Map.take([:games, :frames, :views])
      %{games: 1, frames: 1, views: 1}
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec info(t) :: info
  def info(%__MODULE__{info: info}), do: info

  @doc """
  Returns the entry of each game in the manifest: `file`, `digest`, `source`, `version`, `stage`, `ports`, `characters`,
  `tags`, `kinds` (of players), `frames`, `bytes`, `other_ids`, and in a game of `Sconce.Dagger` with a known one
  `frame_delay`.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-games-" <> System.pid())
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, [{[0.5, 1.0], [1, 0]}], into: dir, heads: [go: {:bernoulli, 1}])
      iex> {:ok, [game]} = Sconce.Corpus.games(corpus)
      iex> game.frames
      2
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec games(t) :: {:ok, [map]} | {:error, Error.t()}
  def games(%__MODULE__{handle: handle}), do: Native.corpus_games(handle)

  @doc """
  Returns the game of one player as a list of `{frame, labels}`.

  A frame is packed for `Sconce.Session.act/3` and contains the input that led to it as its previous action. `labels`
  are those of the player's next input, in the order of the heads. `game` is the index in `games/1`; `player` is 0 or
  1, and 0 in a corpus of vectors.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-recording-" <> System.pid())
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, [{[0.5, 1.0], [1, 0]}], into: dir, heads: [go: {:bernoulli, 1}])
      iex> {:ok, recording} = Sconce.Corpus.recording(corpus, 0)
      iex> for {<<x::float-32-little>>, labels} <- recording, do: {x, labels}
      [{0.5, [1]}, {1.0, [0]}]
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec recording(t, non_neg_integer, 0 | 1) ::
          {:ok, [{binary, [number]}]} | {:error, Error.t()}
  def recording(%__MODULE__{handle: handle}, game, player \\ 0) do
    (is_integer(game) and game in 0..0xFFFF_FFFF) ||
      Options.argument!("game", game, "0 or more")

    player in [0, 1] || Options.argument!("player", player, "0 or 1")

    Reading.recording(handle, game, player)
  end

  @doc false
  # The packed frames of one player's game. `recording/3` lacks the last ones, because no input answers them.
  @spec states(t, non_neg_integer, 0 | 1) :: {:ok, [binary]} | {:error, Error.t()}
  def states(%__MODULE__{handle: handle}, game, player), do: Reading.states(handle, game, player)

  @doc """
  Returns a map for each value that is read from a replay: `group`, `name`, `source` (in the names of peppi), `since`
  (first version of the format), `fallback` (for older files), `conversion`, `dtype`.

      iex> {:ok, fields} = Sconce.Corpus.fields()
      iex> Enum.find(fields, &(&1.name == "jumps_left")) |> Map.take([:source, :since, :fallback])
      %{source: "post.jumps", since: "2.0", fallback: 0.0}
  """
  @spec fields() :: {:ok, [map]} | {:error, Error.t()}
  def fields, do: Native.corpus_fields()

  @doc """
  Prints the table of `fields/0`.

      iex> ExUnit.CaptureIO.capture_io(&Sconce.Corpus.print_fields/0) =~ "since 2.0 else 0.0   post.jumps"
      true
  """
  @spec print_fields() :: :ok | {:error, Error.t()}
  def print_fields do
    with {:ok, fields} <- fields() do
      Enum.each(fields, fn f ->
        since = String.pad_trailing("since #{f.since} else #{f.fallback || "-"}", 20)
        name = String.pad_trailing("#{f.group} #{f.name}", 31)

        IO.puts(
          "#{name} #{String.pad_trailing(f.dtype, 4)} #{since} #{f.source} (#{f.conversion})"
        )
      end)
    end
  end

  @doc """
  Returns the name of an internal character id.

      iex> Sconce.Corpus.character(1)
      "Fox"
  """
  @spec character(non_neg_integer) :: String.t()
  def character(id), do: Names.character(id)

  @doc """
  Returns the internal id of a character; the case of the name is ignored.

      iex> Sconce.Corpus.character_id("fox")
      {:ok, 1}
  """
  @spec character_id(String.t()) :: {:ok, non_neg_integer} | :error
  def character_id(name), do: Names.character_id(name)

  @doc """
  Returns the names of the tournament stages, which the option `:stages` accepts.

      iex> Sconce.Corpus.stages() |> Enum.take(2)
      ["Fountain of Dreams", "Pokémon Stadium"]
  """
  @spec stages() :: [String.t()]
  def stages, do: Names.stages()

  @doc """
  Returns the id of a tournament stage in a replay; the case of the name is ignored.

      iex> Sconce.Corpus.stage_id("battlefield")
      {:ok, 31}
  """
  @spec stage_id(String.t()) :: {:ok, non_neg_integer} | :error
  def stage_id(name), do: Names.stage_id(name)

  @doc false
  # The heads that match the labels, as `{name, kind}`.
  @spec heads(t) :: {:ok, [{Spec.head_name(), tuple}]} | {:error, Error.t()}
  def heads(%__MODULE__{handle: handle}), do: Reading.heads(handle)

  defimpl Inspect do
    alias Sconce.{Corpus, Figures, Game, Text}

    @shown 3

    def inspect(%{info: info}, _opts) do
      relabelled = if info[:relabelled], do: " relabelled", else: ""

      parts = [
        schema(info.schema) <> relabelled,
        "#{Figures.grouped(info.games)} games",
        "#{Figures.grouped(info.frames)} frames",
        characters(info.characters),
        Figures.size(info.bytes)
      ]

      Text.printable("#Sconce.Corpus<#{parts |> Enum.reject(&(&1 == "")) |> Enum.join(" · ")}>")
    end

    defp schema({:vector, n}), do: "vector #{n}"
    defp schema(%Game{name: name, version: version}), do: "#{name} #{version}"
    defp schema(name), do: to_string(name)

    defp characters(counts) do
      {shown, rest} = Enum.split(counts, @shown)
      text = Enum.map_join(shown, ", ", fn {id, n} -> "#{Corpus.character(id)} #{n}" end)
      if rest == [], do: text, else: text <> " …"
    end
  end
end
