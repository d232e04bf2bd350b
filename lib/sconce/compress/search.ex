defmodule Sconce.Compress.Search do
  @moduledoc """
  The policy with the fewest bytes, or the fastest one, whose loss stays within a bound: the result of
  `Sconce.Compress.search/3`. `IO.puts/1` prints it as a table, and `svg/1` draws it.

  ## Bounds

  | `within:` | measure | bound |
  |---|---|---|
  | `{:nll, share}` | NLL on the corpus | that of the policy, plus the share of its magnitude |
  | `{:changed, share}` | frames of the corpus whose likeliest action differs from that of the policy, see `:reference` of `Sconce.Trainer.evaluate/3` | the share |
  | `{:return, share}` | mean return of episodes in an environment, with the likeliest actions, and the same seeds for all | that of the policy, less the share of its magnitude |

  A return needs no corpus: it is nil. A few episodes say little about returns that vary; give `:episodes`.

  ## How it searches

  All matrices get 8 bits, and all get 4 bits. If 4 bits are within the bound, they stay. Otherwise the search begins with
  the fewest bits that all matrices can have (8, or 32), gives each matrix alone the next fewer bits, and scores that. Then
  it lowers the matrices in the order of lost NLL for a saved byte, and halves the range until it knows how many of them
  the bound allows. Each scored policy of this kind is a point of the front.

  Scores are those of the numbers which the codes stand for. Sessions round the inputs of matrices too; `bench/smaller.txt` has
  both on real games.
  """

  alias Sconce.Compress.{Catalogue, Measure, Policy}
  alias Sconce.{Corpus, Env, Error, Figures, Files, Options, Session, Trainer}
  alias Sconce.Trainer.Curve.Page
  alias Sconce.Trainer.Settings

  @enforce_keys [:policy, :within, :for, :bound, :base, :chosen, :points, :matrices]
  defstruct @enforce_keys

  @typedoc """
  A scored policy: `nll` on the corpus, `changed`, the share of other actions, and `return`, the mean return, each nil unless
  it was measured; `bytes` of its weights, `us`, the measured microseconds of a decision, and `counts`, the number of
  matrices with 32, 8 and 4 bits.
  """
  @type point :: %{
          nll: float | nil,
          changed: float | nil,
          return: float | nil,
          bytes: pos_integer,
          us: float,
          counts: %{32 => non_neg_integer, 8 => non_neg_integer, 4 => non_neg_integer}
        }

  @typedoc """
  The chosen `policy`; the options `within` and `for`; `bound`, the largest NLL or share, or the least return; `base`, the
  point of the given policy;
  `chosen`, that of the result; all `points`, and the `matrices` of the result as in `Sconce.Compress.Policy`.
  """
  @type t :: %__MODULE__{
          policy: Sconce.Policy.t(),
          within: {:nll | :changed | :return, float},
          for: :bytes | :speed,
          bound: float,
          base: point,
          chosen: point,
          points: [point],
          matrices: [Policy.matrix()]
        }

  # The episodes of a score.
  @episodes 100

  # The policy that is searched, while the search runs.
  @given "given.safetensors"

  @doc false
  @spec run(Sconce.Policy.t(), Path.t() | Corpus.t() | nil, keyword) ::
          {:ok, t} | {:error, Error.t()}
  def run(%Sconce.Policy{} = policy, corpus, opts) do
    given = opts
    opts = Catalogue.validate!(opts, :search)
    {what, share} = opts[:within]
    share >= 0 or Options.argument!("within", opts[:within], "a share of 0 or more")
    meant!(given, what)
    corpus = scored_on!(corpus, what)
    opts[:env] && Env.name!(opts[:env])
    scratch = opts[:out] || Path.join(System.tmp_dir!(), "sconce-search-#{unique()}")

    try do
      with :ok <- folder(scratch), do: search(policy, corpus, scratch, opts)
    catch
      {:refused, error} -> {:error, error}
    after
      File.rm(Path.join(scratch, @given))
      if opts[:out] == nil, do: File.rm_rf(scratch)
    end
  end

  def run(other, _corpus, _opts), do: Options.argument!("policy", other, "a policy")

  # Refuses options without effect.
  defp meant!(given, what) do
    for name <- if(what == :return, do: [:mode], else: [:env, :episodes]),
        given[name] not in [nil, Catalogue.schema(:search)[name][:default]] do
      raise ArgumentError,
            "option #{inspect(name)} has no effect with within: {#{inspect(what)}, share}"
    end
  end

  defp scored_on!(nil, :return), do: nil

  defp scored_on!(corpus, :return),
    do: Options.argument!("corpus", corpus, "nil, as a return needs none")

  defp scored_on!(corpus, _what), do: Settings.folder(corpus)

  defp unique, do: "#{System.pid()}-#{System.unique_integer([:positive])}"

  defp folder(path) do
    with {:error, reason} <- File.mkdir_p(path) do
      details = %{path: path, reason: reason |> :file.format_error() |> to_string()}
      {:error, %Error{kind: :io, op: :search, details: details}}
    end
  end

  @calibrated [:calibration, :calibration_frames, :frame_delay, :damping]

  defp search(%{bits: bits}, _corpus, _folder, _opts) when bits != 32 do
    details = %{what: "policy", expected: "weights of 32 bits", got: "codes of #{bits} bits"}
    {:error, %Error{kind: :mismatch, op: :search, details: details}}
  end

  defp search(policy, corpus, folder, opts) do
    calibrated = if opts[:calibration], do: Keyword.take(opts, @calibrated), else: []
    coded = fn own -> ok!(Policy.quantise(policy, own ++ calibrated)) end
    eight = coded.(bits: 8)
    four = coded.(bits: 4, group: opts[:group])

    state = %{
      policy: policy,
      coded: %{8 => eight, 4 => four},
      # All matrices as they are, which may be products or in 2:4.
      plain: ok!(Policy.quantise(policy, except: [""])).matrices,
      corpus: corpus,
      folder: folder,
      opts: opts,
      scores: %{},
      key: nil
    }

    state = resumed!(state)
    names = for matrix <- eight.matrices, do: matrix.name
    all = fn bits -> Map.new(names, &{&1, bits}) end
    {base, state} = score(state, all.(32))
    bound = Measure.bound(opts[:within], base)
    {eighth, state} = score(state, all.(8))
    {fourth, state} = score(state, all.(4))

    {ways, state} =
      cond do
        Measure.within?(fourth, bound, opts) -> {[all.(4)], state}
        Measure.within?(eighth, bound, opts) -> lowered(state, all.(8), 4, names, bound)
        true -> lowered(state, all.(32), 8, names, bound)
      end

    finish(state, [all.(32), all.(8), all.(4)] ++ ways, bound)
  end

  # Gives matrices fewer bits, the cheapest first, as many as the bound allows. Returns the scored ways.
  defp lowered(state, from, bits, names, bound) do
    {start, state} = score(state, from)

    {prices, state} =
      Enum.map_reduce(names, state, fn name, state ->
        {point, state} = score(state, Map.put(from, name, bits))
        lost = Measure.loss(point, state.opts) - Measure.loss(start, state.opts)
        {{lost / max(start.bytes - point.bytes, 1), name}, state}
      end)

    order = for {_price, name} <- Enum.sort(prices), do: name

    way = fn count ->
      order |> Enum.take(count) |> Map.new(&{&1, bits}) |> then(&Map.merge(from, &1))
    end

    count = length(order)
    quarters = for quarter <- 1..3, do: div(quarter * count, 4)
    {counts, state} = halved(state, way, {0, count}, bound, [])
    ways = for count <- Enum.uniq(counts ++ quarters), do: way.(count)
    {ways, Enum.reduce(ways, state, &elem(score(&2, &1), 1))}
  end

  # Halves the range of counts: the first is within the bound, and the second is not.
  defp halved(state, _way, {low, high}, _bound, seen) when high - low <= 1,
    do: {[low | seen], state}

  defp halved(state, way, {low, high}, bound, seen) do
    middle = div(low + high, 2)
    {point, state} = score(state, way.(middle))
    range = if Measure.within?(point, bound, state.opts), do: {middle, high}, else: {low, middle}
    halved(state, way, range, bound, [middle | seen])
  end

  # The measure and the bytes of a way to give bits to matrices.
  defp score(state, way) do
    case state.scores do
      %{^way => point} -> {point, state}
      _new -> scored(state, way)
    end
  end

  defp scored(state, way) do
    measures = measures(Measure.what(state.opts), made(state, way), state)
    bytes = Enum.sum(for matrix <- matrices(state, way), do: matrix.bytes)
    numbers = Enum.sum(for matrix <- state.plain, do: matrix.outputs * matrix.inputs)
    others = 4 * (state.policy.num_weights - numbers)
    none = %{nll: nil, changed: nil, return: nil}
    point = Map.merge(none, Map.merge(measures, %{bytes: others + bytes, counts: counts(way)}))
    state = put_in(state.scores[way], point)
    ok!(keep(state))
    state.opts[:progress] && state.opts[:progress].(Measure.line(point, state.opts))
    {point, state}
  end

  defp measures(:return, policy, %{opts: opts}) do
    played = ok!(Env.play(policy, opts[:env], episodes: opts[:episodes] || @episodes, seed: 0))
    %{return: played.mean}
  end

  defp measures(what, policy, state) do
    path = Path.join(state.folder, "scored.safetensors")
    ok!(Sconce.Policy.save(policy, path))
    other = if what == :changed, do: [reference: Path.join(state.folder, @given)], else: []
    report = Trainer.evaluate(path, state.corpus, [mode: state.opts[:mode]] ++ other)
    File.rm(path)
    report = ok!(report)
    %{nll: report.policy.nll, changed: report.differs}
  end

  defp made(state, way) do
    others = for {name, bits} <- way, bits != 32, do: {name, state.coded[bits].policy}
    ok!(Policy.mix(state.policy, others))
  end

  defp matrices(state, way) do
    all = %{32 => state.plain, 8 => state.coded[8].matrices, 4 => state.coded[4].matrices}
    by_name = for {bits, own} <- all, matrix <- own, into: %{}, do: {{bits, matrix.name}, matrix}
    for %{name: name} <- state.plain, do: Map.fetch!(by_name, {way[name], name})
  end

  defp counts(way) do
    found = way |> Map.values() |> Enum.frequencies()
    Map.merge(%{32 => 0, 8 => 0, 4 => 0}, found)
  end

  defp finish(state, ways, bound) do
    ways = Enum.uniq(ways)

    points =
      for way <- ways, do: {way, Map.put(state.scores[way], :us, measured(made(state, way)))}

    allowed =
      for {_way, point} = own <- points, Measure.within?(point, bound, state.opts), do: own

    key = if state.opts[:for] == :bytes, do: :bytes, else: :us
    {way, chosen} = Enum.min_by(allowed, fn {_way, point} -> point[key] end)

    found = %__MODULE__{
      policy: made(state, way),
      within: state.opts[:within],
      for: state.opts[:for],
      bound: bound,
      base: points |> hd() |> elem(1),
      chosen: chosen,
      points: points |> Enum.map(&elem(&1, 1)) |> Enum.sort_by(& &1.bytes, :desc),
      matrices: matrices(state, way)
    }

    with :ok <- write(found, state.opts[:out]), do: {:ok, found}
  end

  # The median of a few measurements.
  defp measured(policy) do
    times = for _ <- 1..3, do: ok!(Session.open(policy, seed: 0)).step_us
    Figures.percentile(times, 50)
  end

  defp write(_found, nil), do: :ok

  defp write(found, out) do
    with :ok <- Sconce.Policy.save(found.policy, Path.join(out, "best.safetensors")),
         :ok <- Files.write(Path.join(out, "report.txt"), text(found), :search),
         do: Page.write(svg(found), Path.join(out, "front.svg"), :search)
  end

  # Resuming

  @scores "scores.etf"
  # How bytes are counted. Scores by another rule are refused.
  @rule 2

  # The scores of an earlier call with the same policy, corpus and options.
  defp resumed!(%{opts: opts, folder: folder} = state) do
    path = Path.join(folder, @given)
    ok!(Sconce.Policy.save(state.policy, path))
    given = Keyword.take(opts, [:group, :mode, :calibration_frames, :frame_delay, :damping])
    # A bound may change, but not what it bounds.
    given = given ++ for({:within, {what, _}} when what != :nll <- opts, do: {:measure, what})

    given =
      given ++
        for({name, value} <- Keyword.take(opts, [:env, :episodes]), value, do: {name, value})

    calibration = opts[:calibration] && Settings.folder(opts[:calibration])

    games =
      for dir <- [state.corpus, calibration], do: dir && digest(Path.join(dir, "manifest.json"))

    key = {@rule, digest(path), games, Enum.sort(given)}
    %{state | key: key, scores: earlier(Path.join(folder, @scores), key)}
  end

  defp digest(path) do
    with {:ok, bytes} <- File.read(path), do: :erlang.md5(bytes)
  end

  defp earlier(path, key) do
    case File.read(path) do
      {:ok, bytes} -> scores(bytes, key) || refuse!(path)
      {:error, :enoent} -> %{}
      {:error, _reason} -> refuse!(path)
    end
  end

  # Nil for the scores of something else, and for a damaged file.
  defp scores(bytes, key) do
    case :erlang.binary_to_term(bytes, [:safe]) do
      {^key, scores} -> scores
      _other -> nil
    end
  rescue
    ArgumentError -> nil
  end

  defp refuse!(path) do
    details = %{
      what: path,
      expected: "scores of this policy, corpus and these options",
      got: "others (to mend it: another :out, or remove the file)"
    }

    throw({:refused, %Error{kind: :mismatch, op: :search, details: details}})
  end

  defp keep(%{opts: opts} = state) do
    if opts[:out] do
      bytes = :erlang.term_to_binary({state.key, state.scores})
      Files.write(Path.join(opts[:out], @scores), bytes, :search)
    else
      :ok
    end
  end

  defp ok!(:ok), do: :ok
  defp ok!({:ok, value}), do: value
  defp ok!({:error, error}), do: throw({:refused, error})

  # Text and picture

  @doc false
  def text(%__MODULE__{} = found) do
    rows = for point <- found.points, do: row(point, found)
    matrices = for matrix <- found.matrices, do: matrix_row(matrix)

    Enum.join(
      [Measure.title(found), "", heading(Measure.what(found)), Enum.join(rows, "\n"), ""] ++
        ["matrices of the chosen policy", matrix_heading(), Enum.join(matrices, "\n"), ""],
      "\n"
    )
  end

  defp heading(what),
    do: cells(["", "f32", "int8", "int4"] ++ Measure.columns(what) ++ ["KiB", "of f32", "us"])

  defp row(point, found) do
    mark = if point == found.chosen, do: "*", else: ""
    counts = for bits <- [32, 8, 4], do: to_string(point.counts[bits])
    share = if found.base.bytes == 0, do: "-", else: ratio(point.bytes / found.base.bytes)
    size = to_string(div(point.bytes, 1024))

    cells(
      [mark] ++ counts ++ Measure.cells(point, found) ++ [size, share, Figures.decimal(point.us)]
    )
  end

  defp cells([mark | cells]),
    do: String.pad_trailing(mark, 2) <> Enum.map_join(cells, &String.pad_leading(&1, 10))

  defp matrix_heading, do: matrix_cells(["name", "bits", "group", "KiB", "error", "of outputs"])

  defp matrix_row(matrix) do
    output = if matrix.output_error, do: ratio(matrix.output_error), else: "-"
    group = if matrix.group, do: to_string(matrix.group), else: "-"
    size = ratio(matrix.bytes / 1024)
    matrix_cells([matrix.name, to_string(matrix.bits), group, size, ratio(matrix.error), output])
  end

  defp matrix_cells([name | cells]),
    do: String.pad_trailing(name, 40) <> Enum.map_join(cells, &String.pad_leading(&1, 11))

  defp ratio(value), do: :erlang.float_to_binary(value / 1, decimals: 4)

  @doc """
  Draws the points as an SVG: the measure over bytes, with the bound.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-search-#{System.unique_integer([:positive])}")
      iex> {:ok, games} = Sconce.Env.CartPole.demonstrations(games: 2, steps: 60)
      iex> {:ok, corpus} = Sconce.Env.CartPole.corpus(games, into: dir)
      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [32, 32], heads: [action: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, found} = Sconce.Compress.search(policy, corpus, within: {:nll, 0.1})
      iex> {found.chosen.bytes < found.base.bytes, Sconce.Compress.Search.svg(found) =~ "<svg"}
      {true, true}
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec svg(t) :: String.t()
  def svg(%__MODULE__{points: [_ | _], base: %{us: _}, chosen: %{us: _}} = found) do
    {name, factor} = Measure.axis(found)
    place = fn point -> {point.bytes / 1024, factor * Map.fetch!(point, Measure.what(found))} end
    points = for point <- found.points, do: place.(point)
    chosen = [place.(found.chosen)]
    bound = factor * found.bound

    panel = %{
      title: "#{name} over KiB",
      x: "KiB of weights",
      from: [bound],
      series: [
        {:points, "#64748b", points, nil, nil},
        {:points, "#2563eb", chosen, nil, nil},
        {:rule, "#ea580c", bound, "bound"}
      ]
    }

    summary =
      "chosen for #{found.for}: #{div(found.chosen.bytes, 1024)} of #{div(found.base.bytes, 1024)} KiB, " <>
        "#{Figures.decimal(found.chosen.us)} of #{Figures.decimal(found.base.us)} us a decision"

    legend = [{"scored", "#64748b", :points}, {"chosen", "#2563eb", :points}]
    Page.svg("Smaller policies", summary, legend, [{300, [panel]}])
  end

  defimpl Inspect do
    def inspect(
          %{points: [_ | _], base: %{us: _} = base, chosen: %{us: _} = chosen} = found,
          _opts
        ) do
      share = :erlang.float_to_binary(chosen.bytes / base.bytes, decimals: 3)
      gain = Sconce.Compress.Measure.gain(found)
      "#Sconce.Compress.Search<#{length(found.points)} points, bytes #{share} of f32, #{gain}>"
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.Compress.Search<no results>"
  end

  defimpl String.Chars do
    def to_string(found), do: Sconce.Compress.Search.text(found)
  end
end
