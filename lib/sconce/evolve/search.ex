defmodule Sconce.Evolve.Search do
  alias Sconce.{Device, Env, Error, Native, Options, Policy}
  alias Sconce.Evolve.{Archive, Catalogue, Population, Tensors}
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec

  @search Catalogue.schema(:search)
  @episodes Catalogue.schema(:episodes)
  @device Catalogue.schema(:device)

  @moduledoc """
  A search whose loop is native: each generation writes individuals, plays their episodes, offers them to an archive and
  moves strategies, in one call for as many generations as you like.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [8])
      iex> {:ok, search} = Sconce.Evolve.Search.new(spec, :cart_pole, source: :sep_cma_es, batch: 32, new_starts: true)
      iex> {:ok, progress} = Sconce.Evolve.Search.run(search, 60)
      iex> progress.best
      500.0
      iex> {:ok, policy} = Sconce.Evolve.Search.policy(search)
      iex> {:ok, played} = Sconce.Env.play(policy, :cart_pole, episodes: 10)
      iex> played.mean > 400
      true

  With an archive, elites of many kinds remain:

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> size = Sconce.Evolve.Search.size(spec)
      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [10, 10]}, ranges: [{-2.4, 2.4}, {0, 1}], solution_size: size)
      iex> {:ok, search} =
      ...>   Sconce.Evolve.Search.new(spec, :cart_pole, archive: archive, batch: 100, measures: [{:final, 0}, {:input, 0}])
      iex> {:ok, _progress} = Sconce.Evolve.Search.run(search, 20)
      iex> {:ok, stats} = Sconce.Evolve.Archive.stats(archive)
      iex> stats.elites > 10
      true

  | source | individuals of a generation |
  |---|---|
  | `:elites` | children of elites (MAP-Elites, Mouret & Clune 2015); random ones while the archive is empty |
  | `{:cma_me, n}` | of `n` strategies for which candidates in new cells are best, then improvements (Fontaine et al. 2020) |
  | `{:cma_mae, n}` | of `n` strategies that maximise the improvement over thresholds; give the archive a `:learning_rate` below 1 and a `:threshold_min` (Fontaine & Nikolaidis 2023) |
  | `:cma_es`, `:sep_cma_es`, `:snes`, `:open_ai_es` | of one strategy that maximises the return; an archive is optional |

  An archive stores the plain return. A share of `:novelty` counts in the choice of parents alone.

  With `device: :cuda` the episodes of a generation are one launch on an NVIDIA card; see `Sconce.Evolve.Population`.

  Results depend on the options, not on threads or pauses: a search that was saved, killed and resumed ends with the same
  archive, to the bit. A search uses its archive during a call, so other calls on the archive are then of kind `:busy`.
  """

  @enforce_keys [:ref, :spec, :env, :archive, :batch, :size, :source, :storage]
  defstruct @enforce_keys

  @typedoc "A search in native memory, with its sizes and its archive."
  @type t :: %__MODULE__{
          ref: reference,
          spec: Spec.t(),
          env: Env.name(),
          archive: Archive.t() | nil,
          batch: pos_integer,
          size: pos_integer,
          source: atom | {atom, pos_integer},
          storage: :f32 | :bf16 | :int8
        }

  @typedoc """
  Figures of a call.

  | key | content |
  |---|---|
  | `generation`, `evaluations`, `best` | of the whole search: finished generations, evaluated individuals, highest return |
  | `mean` | mean return of the last generation |
  | `added` | candidates of these generations that the archive stored |
  | `decisions` | decisions of these generations |
  | `stages` | seconds of these generations in `variation_s`, `evaluation_s` and `archive_s` |
  """
  @type progress :: %{
          generation: non_neg_integer,
          evaluations: non_neg_integer,
          best: float | nil,
          mean: float,
          added: non_neg_integer,
          decisions: non_neg_integer,
          stages: %{variation_s: float, evaluation_s: float, archive_s: float}
        }

  @doc """
  Returns the numbers of a solution of a Spec.

      iex> Sconce.Evolve.Search.size(Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [32, 16]))
      722
  """
  @spec size(Spec.t() | keyword) :: pos_integer
  def size(spec) do
    case Population.new(spec, count: 1) do
      {:ok, population} -> population.size
      {:error, error} -> raise ArgumentError, Exception.message(error)
    end
  end

  @doc """
  Creates a search of policies of a Spec in an environment of `Sconce.Env`. `:archive` is a `Sconce.Evolve.Archive`.

  #{Options.docs(@search ++ @device ++ @episodes)}

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole)
      iex> {:error, error} = Sconce.Evolve.Search.new(spec, :cart_pole)
      iex> Exception.message(error)
      "search: archive: expected one, for elites and emitters, got none"
      iex> Sconce.Evolve.Search.new(spec, :cart_pol)
      ** (ArgumentError) unknown environment :cart_pol, did you mean :cart_pole?
  """
  @spec new(Spec.t() | keyword, Env.name(), keyword) :: {:ok, t} | {:error, Error.t()}
  def new(spec, env, opts \\ []) do
    {archive, opts} = opts |> Options.keyword!() |> Keyword.pop(:archive)
    opts = Options.validate!(opts, @search ++ @device ++ @episodes)
    {device, opts} = Keyword.pop!(opts, :device)
    {own, episodes} = Keyword.split(opts, Keyword.keys(@search))
    spec = Spec.new(spec)
    options = options(own)
    episodes = Catalogue.episodes(env, episodes)

    with {:ok, device} <- Device.resolve(device),
         options = Map.put(options, :device, to_string(device)),
         {:ok, {ref, {batch, size}}} <-
           Call.in_background(
             &Native.search_new(&1, Spec.to_native(spec), options, episodes, handle(archive))
           ) do
      {:ok,
       %__MODULE__{
         ref: ref,
         spec: spec,
         env: env,
         archive: archive,
         batch: batch,
         size: size,
         source: own[:source],
         storage: own[:storage]
       }}
    end
  end

  defp handle(nil), do: nil
  defp handle(%Archive{ref: ref}), do: ref
  defp handle(other), do: Options.argument!("archive", other, "a Sconce.Evolve.Archive")

  defp options(own) do
    own
    |> Keyword.take([:batch, :storage, :sigma, :seed, :new_starts])
    |> Map.new()
    |> Map.put(:source, source(own[:source], own))
  end

  defp source(:elites, own),
    do: {:elites, %{variation: Catalogue.variation(own), selection: selection(own)}}

  defp source({kind, count}, own) do
    ranking = if kind == :cma_me, do: :two_stage, else: :improvement
    {:emitters, %{count: count, method: :sep_cma_es, sigma: own[:sigma], ranking: ranking}}
  end

  defp source(method, own) do
    {:strategy,
     %{
       method: method,
       population: own[:batch],
       sigma: own[:sigma],
       learning_rate: own[:learning_rate],
       seed: own[:seed]
     }}
  end

  defp selection(own) do
    case {own[:tournament], own[:novelty]} do
      {nil, share} when share > 0 ->
        raise ArgumentError, "option :novelty needs a :tournament, such as tournament: 4"

      {nil, _none} ->
        :uniform

      {size, share} ->
        {:tournament, %{size: size, novelty: share, nearest: own[:nearest]}}
    end
  end

  @doc """
  Runs up to a million generations on native threads in the background. They end with the calling process.
  `Sconce.Evolve.Run` runs more, with events and saves.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, search} = Sconce.Evolve.Search.new(spec, :cart_pole, source: :snes, batch: 16)
      iex> {:ok, progress} = Sconce.Evolve.Search.run(search, 2)
      iex> {progress.generation, progress.evaluations, progress.mean <= progress.best}
      {2, 32, true}
      iex> {:ok, policy} = Sconce.Evolve.Search.policy(search)
      iex> Sconce.Policy.info(policy) |> elem(1) |> Map.get(:num_weights)
      30
  """
  @spec run(t, pos_integer) :: {:ok, progress} | {:error, Error.t()}
  def run(%__MODULE__{ref: ref}, generations \\ 1) do
    generations in 1..1_000_000 ||
      Options.argument!("generations", generations, "an integer from 1 to 1000000")

    Call.in_background(&Native.search_run(ref, &1, generations))
  end

  defp generations!(count) do
    count in 1..(2 ** 53) || Options.argument!("generations", count, "an integer from 1 to 2^53")
  end

  @doc """
  Measures three generations, and returns the bytes and the time of a run that begins with them: `population_bytes`,
  `strategy_bytes` of what a strategy or all emitters keep between generations (nil without one), `archive_bytes` of a
  full archive (nil without one), `evaluations_per_second`, `generations` and `seconds`.

  Do it with a search of its own: its archive gets what these generations find.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, search} = Sconce.Evolve.Search.new(spec, :cart_pole, source: :snes, batch: 16)
      iex> {:ok, plan} = Sconce.Evolve.Search.plan(search, 100)
      iex> {plan.population_bytes, plan.strategy_bytes, plan.archive_bytes, plan.generations, plan.seconds > 0}
      {1920, 720, nil, 100, true}
  """
  @spec plan(t, pos_integer) :: {:ok, map} | {:error, Error.t()}
  def plan(%__MODULE__{} = search, generations) do
    generations!(generations)

    with {:ok, rate} <- rate(search, 3, 0.0),
         population = [count: search.batch, storage: search.storage],
         {:ok, population} <- Population.new(search.spec, population) do
      {:ok,
       %{
         population_bytes: population.bytes,
         strategy_bytes: strategy_bytes(search.source, search.size),
         archive_bytes: archive_bytes(search.archive),
         evaluations_per_second: rate,
         generations: generations,
         seconds: generations * search.batch / rate
       }}
    end
  end

  defp strategy_bytes(:elites, _size), do: nil
  defp strategy_bytes({_kind, count}, size), do: count * strategy_bytes(:sep_cma_es, size)
  defp strategy_bytes(method, size), do: 8 * numbers(method, size)

  # The best candidate and the mean, and beside them moments, deviations, or paths and variances.
  defp numbers(:open_ai_es, size), do: 4 * size
  defp numbers(:snes, size), do: 3 * size
  defp numbers(:sep_cma_es, size), do: 5 * size
  # The covariance, its root, and the inverse of the root are matrices.
  defp numbers(:cma_es, size), do: 4 * size + 3 * size ** 2

  defp archive_bytes(nil), do: nil

  # Of a cell 12 bytes, and of its elite solution, measures, objective and cell.
  defp archive_bytes(%{cells: cells, measures: measures, solution_size: size}),
    do: cells * (12 + 4 * size + 8 * measures + 12)

  @doc """
  Measures evaluations a second of searches with batches of some sizes, for `seconds` each. `search` returns
  `{:ok, search}` for a size.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> new = &Sconce.Evolve.Search.new(spec, :cart_pole, source: :snes, batch: &1)
      iex> {:ok, [{16, slow}, {64, fast}]} = Sconce.Evolve.Search.sweep(new, [16, 64], 0.05)
      iex> slow > 0 and fast > 0
      true
  """
  @spec sweep((pos_integer -> {:ok, t} | {:error, Error.t()}), [pos_integer], number) ::
          {:ok, [{pos_integer, float}]} | {:error, Error.t()}
  def sweep(search, sizes, seconds \\ 1.0) do
    is_function(search, 1) || Options.argument!("search", search, "a function of 1")

    (is_list(sizes) and not List.improper?(sizes)) ||
      Options.argument!("sizes", sizes, "a list of batch sizes")

    (is_number(seconds) and seconds >= 0 and seconds <= 3600) ||
      Options.argument!("seconds", seconds, "a number from 0 to 3600")

    Enum.reduce_while(sizes, {:ok, []}, fn size, {:ok, rates} ->
      with {:ok, own} <- search.(size), {:ok, rate} <- rate(own, 1, seconds) do
        {:cont, {:ok, rates ++ [{size, rate}]}}
      else
        error -> {:halt, error}
      end
    end)
  end

  # Evaluations a second of at least some generations and some seconds, after a first one.
  defp rate(search, generations, seconds) do
    with {:ok, _first} <- run(search, 1), do: rate(search, {generations, seconds}, 0, now())
  end

  defp rate(search, {generations, seconds} = least, done, begun) do
    with {:ok, _progress} <- run(search, 1) do
      spent = max(now() - begun, 1) / 1.0e6

      if done + 1 >= generations and spent >= seconds,
        do: {:ok, (done + 1) * search.batch / spent},
        else: rate(search, least, done + 1, begun)
    end
  end

  defp now, do: System.monotonic_time(:microsecond)

  @doc """
  Returns the policy of the mean of a strategy, or of the best elite of the archive. `run/2` has an example.
  """
  @spec policy(t) :: {:ok, Policy.t()} | {:error, Error.t()}
  def policy(%__MODULE__{ref: ref, spec: spec, archive: archive}) do
    case Call.run(&Native.search_mean(ref, &1)) do
      {:ok, [mean]} -> Population.policy(spec, Tensors.write(mean, {:f, 32}, nil, :map))
      {:ok, []} -> with {:ok, best} <- Archive.best(archive), do: Population.policy(spec, best)
      error -> error
    end
  end

  @doc """
  Writes the state of a search and its archive to a folder, which is created: the whole new state, or the old one stays.

      iex> folder = Path.join(System.tmp_dir!(), "sconce-search-\#{System.unique_integer([:positive])}")
      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> new = fn -> Sconce.Evolve.Search.new(spec, :cart_pole, source: :snes, batch: 16) end
      iex> {:ok, search} = new.()
      iex> {:ok, _progress} = Sconce.Evolve.Search.run(search, 3)
      iex> Sconce.Evolve.Search.save(search, folder)
      :ok
      iex> {:ok, again} = new.()
      iex> Sconce.Evolve.Search.resume(again, folder)
      :ok
      iex> Sconce.Evolve.Search.run(again, 2) |> elem(1) |> Map.take([:generation, :evaluations])
      %{generation: 5, evaluations: 80}
  """
  @spec save(t, Path.t()) :: :ok | {:error, Error.t()}
  def save(%__MODULE__{ref: ref}, folder) do
    folder = Options.path!(folder)

    with :ok <- made(folder),
         {:ok, true} <- Call.in_background(&Native.search_save(ref, &1, folder)),
         do: :ok
  end

  defp made(folder) do
    with {:error, reason} <- File.mkdir_p(folder) do
      reason = to_string(:file.format_error(reason))
      {:error, %Error{kind: :io, op: :save, details: %{path: folder, reason: reason}}}
    end
  end

  @doc """
  Goes on from the state of a folder, its archive included. The search must have been created with the options of the one
  that wrote it; strategies or an archive of others are an error of kind `:mismatch`. `save/2` has an example.
  """
  @spec resume(t, Path.t()) :: :ok | {:error, Error.t()}
  def resume(%__MODULE__{ref: ref}, folder) do
    folder = Options.path!(folder)

    with {:ok, true} <- Call.in_background(&Native.search_resume(ref, &1, folder)), do: :ok
  end

  defimpl Inspect do
    def inspect(%{env: env, source: source, batch: batch, size: size}, _opts) do
      "#Sconce.Evolve.Search<#{Kernel.inspect(env)} · #{Kernel.inspect(source)} · #{batch} of #{size} numbers>"
    end
  end
end
