defmodule Sconce.Bench.Quantise do
  @moduledoc false
  # Measures how a policy's decisions change if its weights are kept in fewer bits than f32.
  #
  # The policy plays whole games once in each format, with a separate memory for each. All formats
  # see the same frames, and score the action that is most likely in f32. Logits of autoregressive heads are
  # therefore computed for the same choices, and a changed choice does not affect the next frame.

  alias Sconce.Bench.{Machine, Output}
  alias Sconce.{Corpus, Figures, Policy, Session}

  @type row :: %{
          format: atom,
          kept: atom,
          step_us: float,
          frames: pos_integer,
          differences: [float],
          largest: float,
          changed: non_neg_integer,
          heads: [{atom, non_neg_integer}],
          matrices: [map]
        }

  @doc """
  Returns a row for each format. `kept` is the actual format (f32 for a policy that is not packed). `differences`
  are the largest difference of each frame's logits from those in f32, and `largest` is the largest absolute
  logit, for scale. `changed` counts frames whose most likely action changes, and `heads` counts them for
  each head. `matrices` are those of `Sconce.Session.info/1`.
  """
  @spec run(Policy.t(), Corpus.t(), [atom], keyword) :: [row]
  def run(policy, corpus, formats, opts \\ []) do
    plain = open!(policy, :f32)
    sessions = for format <- formats, do: {format, open!(policy, format)}
    views = views(corpus, opts[:games])
    views != [] || raise "a corpus without games"
    found = Enum.map(views, &game(corpus, &1, plain, sessions))
    rows = for {format, session} <- sessions, do: row(policy, format, session, found)
    for session <- [plain | Keyword.values(sessions)], do: :ok = Session.close(session)
    rows
  end

  defp open!(policy, format) do
    opts = [weights: format, deterministic: true, logits: true, seed: 0]
    Machine.value!(Session.open(policy, opts))
  end

  # Each player of a game is one view.
  defp views(corpus, games) do
    players = if corpus.info.schema == :melee, do: 0..1, else: 0..0
    count = min(games || corpus.info.games, corpus.info.games)
    for game <- 0..(count - 1)//1, player <- players, do: {game, player}
  end

  # Returns, for each frame of a game, the largest logit in f32 and the comparison of each format.
  defp game(corpus, {game, player}, plain, sessions) do
    for session <- [plain | Keyword.values(sessions)], do: :ok = Session.reset(session)
    {:ok, recording} = Corpus.recording(corpus, game, player)

    for {frame, _labels} <- recording do
      {:ok, action} = Session.act(plain, frame)
      largest = action.logits |> Map.values() |> List.flatten() |> Enum.map(&abs/1) |> Enum.max()

      compared =
        for {format, session} <- sessions, into: %{} do
          {:ok, other} = Session.act(session, frame, choices: action.choices)
          {format, compare(session.spec.heads, action, other)}
        end

      {largest, compared}
    end
  end

  defp compare(heads, action, other) do
    for %{name: name, kind: kind} <- heads do
      logits = Map.fetch!(other.logits, name)
      pairs = Enum.zip(Map.fetch!(action.logits, name), logits)
      difference = pairs |> Enum.map(fn {a, b} -> abs(a - b) end) |> Enum.max()
      {difference, likeliest(kind, logits) != Map.fetch!(action.choices, name)}
    end
  end

  @doc """
  The most likely choice by a head's logits.

      iex> Sconce.Bench.Quantise.likeliest({:bernoulli, 3}, [0.5, 0.0, -1.0])
      [1, 0, 0]
      iex> Sconce.Bench.Quantise.likeliest({:categorical, 3}, [0.5, 2.0, 2.0])
      1
  """
  @spec likeliest({atom, pos_integer}, [float]) :: non_neg_integer | [0 | 1]
  def likeliest({:bernoulli, _n}, logits), do: for(x <- logits, do: if(x > 0, do: 1, else: 0))

  def likeliest({:categorical, _n}, logits) do
    {_largest, index} = logits |> Enum.with_index() |> Enum.max_by(&elem(&1, 0))
    index
  end

  defp row(policy, format, session, found) do
    frames = Enum.concat(found)
    compared = for {_largest, all} <- frames, do: Map.fetch!(all, format)
    heads = for %{name: name} <- policy.spec.heads, do: name

    changed =
      for {name, i} <- Enum.with_index(heads),
          do: {name, Enum.count(compared, &(&1 |> Enum.at(i) |> elem(1)))}

    {:ok, %{matrices: matrices}} = Session.info(session)

    %{
      format: format,
      matrices: matrices,
      kept: session.weights,
      step_us: session.step_us,
      frames: length(frames),
      differences: for(heads <- compared, do: heads |> Enum.map(&elem(&1, 0)) |> Enum.max()),
      largest: frames |> Enum.map(&elem(&1, 0)) |> Enum.max(),
      changed: Enum.count(compared, &Enum.any?(&1, fn {_difference, changed?} -> changed? end)),
      heads: changed
    }
  end

  @doc "The rows as a table: differences of logits, and percentages of frames whose choice changed."
  @spec table([row]) :: String.t()
  def table([%{heads: heads} | _] = rows) do
    names = for {name, _changed} <- heads, do: {to_string(name), 9, :right}

    columns =
      [{"weights", 7, :left}, {"kept", 4, :left}, {"frames", 9, :right}, {"step, us", 8, :right}] ++
        for(title <- ["diff p50", "p99", "most", "of logits"], do: {title, 9, :right}) ++
        [{"changed %", 9, :right} | names]

    titles = for {title, _width, _side} <- columns, do: title
    Enum.map_join([titles | Enum.map(rows, &cells/1)], "\n", &Output.line(columns, &1))
  end

  defp cells(row) do
    differences = for percent <- [50, 99, 100], do: Figures.percentile(row.differences, percent)
    changed = [row.changed | Keyword.values(row.heads)]

    [to_string(row.format), to_string(row.kept), Figures.grouped(row.frames)] ++
      [Figures.decimal(row.step_us)] ++
      Enum.map(differences ++ [row.largest], &decimals(&1, 4)) ++
      Enum.map(changed, &decimals(100 * &1 / row.frames, 3))
  end

  @doc """
  A summary of a row's matrices: the count in the requested format with their largest error, and those in
  another format. Nil for a policy that is not packed.

      iex> matrices = [%{name: "a", weights: :int8, error: 0.01}, %{name: "b", weights: :bf16, error: 0.03}]
      iex> Sconce.Bench.Quantise.matrices(%{format: :int8, matrices: matrices})
      "int8: 1 of 2 matrices, errors up to 0.0100; b in bf16"
  """
  @spec matrices(map) :: String.t() | nil
  def matrices(%{matrices: []}), do: nil

  def matrices(%{format: format, matrices: matrices}) do
    {kept, others} = Enum.split_with(matrices, &(&1.weights == format))
    most = kept |> Enum.map(& &1.error) |> Enum.max(fn -> 0.0 end)

    text =
      "#{format}: #{length(kept)} of #{length(matrices)} matrices, errors up to #{decimals(most, 4)}"

    Enum.join(
      [text | for(%{name: name, weights: other} <- others, do: "#{name} in #{other}")],
      "; "
    )
  end

  defp decimals(value, digits), do: :erlang.float_to_binary(value / 1, decimals: digits)
end
