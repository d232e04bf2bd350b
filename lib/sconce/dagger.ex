defmodule Sconce.Dagger do
  alias Sconce.{Action, Corpus, Error, Native, Options, Policy}
  alias Sconce.Dagger.{Expert, Row}
  alias Sconce.Session.Catalogue

  @session Keyword.take(Catalogue.schema(:open), [:window_size, :seed, :device])
  @relabel [
             game: [
               type: :any,
               default: nil,
               doc:
                 "`:melee` or a `Sconce.Game`; `nil` is the game of the expert's policy, and `:melee` for other experts."
             ],
             mode: [
               type: {:or, [:carry, :window, {:tuple, [{:in, [:resync]}, :pos_integer]}]},
               default: :carry,
               doc: "For a policy: the frames that an answer remembers, as in `Sconce.Session`."
             ],
             frame_delay: [
               type: {:or, [:non_neg_integer, nil]},
               max: 10_000,
               default: nil,
               doc:
                 "Frame delay with which the games were played, see \"Delays\"; `nil` is not known."
             ],
             deterministic: [
               type: :boolean,
               default: true,
               doc:
                 "For a policy: whether it answers its likeliest action instead of a sampled one."
             ]
           ] ++ @session

  @moduledoc """
  Labels frames that a policy met in play with an expert's answers, and adds them to a corpus that the policy is trained
  on: DAgger (Ross, Gordon and Bagnell 2011).

  A policy that imitates games makes small errors, meets frames that those games do not contain, and was never told what
  to do there. DAgger asks an expert about the frames that the policy itself met:

      {:ok, met} = Sconce.Dagger.append("met", games, expert)
      {:ok, run} = Sconce.Trainer.start_link(corpus: "replays", mix: [{"met", 0.3}], policy: "run/best.safetensors", out: "run2")

  Then the new policy plays, and its games are appended too. `mix sconce.train --corpus replays --mix met=0.3` trains
  on both in a shell. The corpus may also be the only one of a run, and it opens with `Sconce.Corpus.open/1`.

  ## Games

  A game is an enumerable of the frames that the policy met, in order: packed rows (`Sconce.Frame.pack/1`) or frames. The
  previous action of a frame is the input that was played, not the expert's. Melee frames are seen by the player whom
  the policy played.

  ## Experts

  | an expert | is |
  |---|---|
  | a `Sconce.Policy` | a session plays it over the frames of a game, with the inputs that were played as its past |
  | a function of one argument | `frame -> answer` |
  | a function of two arguments | `frame, memory -> {answer, memory}`; the memory of a game begins as nil |
  | a module with this behaviour | `c:answer/2` |

  A function gets the frame as a `Sconce.Frame`, or in a declared game as a map of its fields and `previous_action`. An
  answer is a `Sconce.Action`, a map of the same `buttons`, `main_stick`, `c_stick` and `shoulder` (in a declared game the
  parts of its input), or `:skip`. A skipped frame has no part in the loss and in figures, but a policy's memory reads it.

  ## Delays

  The answer to a frame is the label of this frame, whatever the delay: the expert decides where the policy decided, and
  both choices take effect `frame_delay` frames later. A policy with `queue_depth: k` reads the inputs that were really
  chosen before the answer. Later frames show them as their previous actions, so the last `frame_delay` frames of a game
  are not learned.

  The corpus records the option `:frame_delay`, and runs and evaluations read these games with it, whatever their own
  delay, also in a mix with random delays. Without it they use their own delay, which is then that of the play. An
  expert's session has the option too; without it the session has the delay of the expert's training. A known game with
  another `:frame_delay` is refused, because the corpus would keep the first one.
  """

  @typedoc "A frame as a packed row, a struct or a map."
  @type row :: binary | map
  @typedoc "An action of the expert, or `:skip` for a frame without a label."
  @type answer :: Action.t() | map | :skip
  @type expert ::
          Policy.t()
          | (map -> answer)
          | (map, term -> {answer, term})
          | module

  @typedoc """
  The report of `append/4`: games `added`, `known` from before, and `skipped` because no frame has an answer; `frames`
  of the added games, and those that are `labelled`.
  """
  @type report :: %{
          added: non_neg_integer,
          known: non_neg_integer,
          skipped: non_neg_integer,
          frames: non_neg_integer,
          labelled: non_neg_integer
        }

  @doc """
  Answers a frame. `memory` is nil for the first frame of a game, and then what the call before returned.
  """
  @callback answer(frame :: map, memory :: term) :: {answer, memory :: term}

  @doc """
  Returns the expert's answers to the frames of one game, in order.

  A frame that the policy of an expert refuses is an error that names it, and so is an answer that is no action.

  #{Options.docs(@relabel)}

      iex> walk = Sconce.Game.new!(name: :walk, fields: [x: [type: :number]], input: [step: [type: {:choice, 3}]])
      iex> home = fn %{x: x} -> if x == 0, do: :skip, else: %{step: if(x > 0, do: 0, else: 2)} end
      iex> Sconce.Dagger.relabel([%{x: 1.5}, %{x: -0.5}, %{x: 0}], home, game: walk)
      {:ok, [%{step: 0}, %{step: 2}, :skip]}
  """
  @spec relabel(Enumerable.t(), expert, keyword) :: {:ok, [answer]} | {:error, Error.t()}
  def relabel(rows, expert, opts \\ []) do
    {game, opts} = options!(expert, opts)

    with {:ok, expert} <- Expert.open(expert, opts),
         {:ok, answered} <- closing(expert, fn -> answered(rows, game, expert, "") end),
         do: {:ok, for({_row, answer, _input} <- answered, do: answer)}
  end

  @doc """
  Adds games with the expert's answers to the corpus in the folder `into`, which is created if it is missing, and
  opens it. Its `report` tells what was added.

  A game that the corpus has already is not added again, nor is one without any answer. On an error, or if the expert
  raises, no game is added. If the VM dies, the finished games stay, and the next call takes them over. A lock keeps
  two writers apart: the second one gets an error of kind `:busy`.

  The games of a corpus are of one game: another one is an error of kind `:mismatch`. A frame or an answer with a wrong
  value is an error that names the game, the frame and the value. The options are those of `relabel/3`.

      iex> walk = Sconce.Game.new!(name: :walk, fields: [x: [type: :number]], input: [step: [type: {:choice, 3}]])
      iex> home = fn %{x: x} -> %{step: if(x > 0, do: 0, else: 2)} end
      iex> dir = Path.join(System.tmp_dir!(), "sconce-dagger-" <> System.pid())
      iex> {:ok, first} = Sconce.Dagger.append(dir, [[%{x: 1.5}, %{x: -0.5}]], home, game: walk)
      iex> {:ok, both} = Sconce.Dagger.append(dir, [[%{x: 1.5}, %{x: -0.5}], [%{x: 2.5}]], home, game: walk)
      iex> {first.report.added, both.report.added, both.report.known, both.info.games, both.info.frames}
      {1, 1, 1, 2, 3}
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec append(Path.t(), Enumerable.t(), expert, keyword) ::
          {:ok, Corpus.t()} | {:error, Error.t()}
  def append(into, games, expert, opts \\ []) do
    into = into |> Options.path!() |> Path.expand()
    {game, opts} = options!(expert, opts)

    played = {game, opts[:frame_delay]}

    with {:ok, expert} <- Expert.open(expert, opts),
         {:ok, report} <- closing(expert, fn -> added(into, games, played, expert) end),
         {:ok, corpus} <- Corpus.open(into),
         do: {:ok, %{corpus | report: report}}
  end

  # Returns the game and the options of a session.
  defp options!(expert, opts) do
    {game, opts} = opts |> Options.validate!(@relabel) |> Keyword.pop!(:game)
    {Row.game!(game || Expert.game!(expert)), opts}
  end

  defp closing(expert, work) do
    work.()
  after
    Expert.close(expert)
  end

  defp added(into, games, {game, frame_delay}, expert) do
    with {:ok, builder} <- Native.builder_open(Row.schema(game), into, true, false, frame_delay),
         {:ok, report} <- add_all(builder, games, game, expert),
         {:ok, _made} <- Native.builder_finish(builder, true),
         do: {:ok, report}
  end

  # Removes the new games if anything raises, throws or exits.
  defp add_all(builder, games, game, expert) do
    report = %{added: 0, known: 0, skipped: 0, frames: 0, labelled: 0}

    games
    |> Stream.with_index()
    |> Enum.reduce_while({:ok, report}, fn {rows, i}, {:ok, report} ->
      case add(builder, rows, game, expert, "game #{i}, ") do
        {:ok, counts} -> {:cont, {:ok, Map.merge(report, counts, fn _key, a, b -> a + b end)}}
        {:error, _error} = refused -> {:halt, refused}
      end
    end)
    |> case do
      {:ok, report} ->
        {:ok, report}

      refused ->
        Native.builder_finish(builder, false)
        refused
    end
  rescue
    error in Protocol.UndefinedError ->
      Native.builder_finish(builder, false)
      Options.enumerable!(error, games, "games", "an enumerable of games", __STACKTRACE__)
  catch
    kind, reason ->
      Native.builder_finish(builder, false)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  defp add(builder, rows, game, expert, at) do
    with {:ok, answered} <- answered(rows, game, expert, at) do
      labelled = Enum.count(answered, fn {_row, answer, _input} -> answer != :skip end)

      if labelled == 0,
        do: {:ok, %{skipped: 1}},
        else: add_rows(builder, game, answered, labelled, at)
    end
  end

  defp add_rows(builder, game, answered, labelled, at) do
    rows = for {row, _answer, input} <- answered, do: Row.labelled(game, row, input)

    case Native.builder_add(builder, IO.iodata_to_binary(rows)) do
      {:ok, true} -> {:ok, %{added: 1, frames: length(answered), labelled: labelled}}
      {:ok, false} -> {:ok, %{known: 1}}
      {:error, error} -> {:error, located(error, at)}
    end
  end

  # The native side counts the games of the whole corpus.
  defp located(error, at) do
    details =
      Map.new(error.details, fn
        {key, text} when key in [:what, :field] and is_binary(text) ->
          {key, String.replace(text, ~r/^game \d+, /, at)}

        other ->
          other
      end)

    %{error | op: :append, details: details}
  end

  # Returns the packed row, the answer and its raw values (nil for none) of each frame.
  defp answered(rows, game, expert, at) do
    with {:ok, packed} <- packed(rows, game, at),
         {:ok, answers} <- Expert.answers(expert, game, packed, at) do
      answers
      |> Stream.zip(packed)
      |> Stream.with_index()
      |> Enum.reduce_while([], fn {{answer, row}, t}, before ->
        case Row.input(game, answer, "#{at}frame #{t}, answer") do
          {:ok, input} -> {:cont, [{row, answer, input} | before]}
          {:error, error} -> {:halt, {:error, %{error | op: :relabel}}}
        end
      end)
      |> case do
        {:error, _error} = refused -> refused
        answered -> {:ok, Enum.reverse(answered)}
      end
    end
  end

  defp packed(rows, game, at) do
    rows
    |> Stream.with_index()
    |> Enum.reduce_while([], fn {row, t}, before ->
      case Row.pack(game, row) do
        {:ok, row} -> {:cont, [row | before]}
        {:error, error} -> {:halt, {:error, Row.located(error, "#{at}frame #{t}, ")}}
      end
    end)
    |> case do
      {:error, _error} = refused -> refused
      packed -> {:ok, Enum.reverse(packed)}
    end
  rescue
    error in Protocol.UndefinedError ->
      Options.enumerable!(error, rows, "#{at}rows", "an enumerable of frames", __STACKTRACE__)
  end
end
