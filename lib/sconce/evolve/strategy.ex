defmodule Sconce.Evolve.Strategy do
  alias Sconce.Evolve.{Kept, Tensors}
  alias Sconce.{Error, Native, Options}
  alias Sconce.Native.Call

  @methods [:open_ai_es, :snes, :sep_cma_es, :cma_es]

  @new [
    method: [type: {:in, @methods}, default: :cma_es, doc: "The strategy."],
    population: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 2 ** 31,
      doc: "Candidates of a generation; `nil` is `4 + floor(3 ln n)`, made even."
    ],
    sigma: [
      type: :float,
      default: 0.5,
      above: 0,
      max: 1.0e150,
      doc: "Standard deviation of the first generation."
    ],
    learning_rate: [
      type: :float,
      default: 0.01,
      above: 0,
      max: 1.0e150,
      doc: "Step size of Adam; only `:open_ai_es` reads it."
    ],
    seed: [type: :non_neg_integer, default: 0, max: 2 ** 64 - 1, doc: "Seed of all noise."]
  ]

  @moduledoc """
  Searches for one good solution without gradients: a distribution of solutions that moves towards higher fitness.

      iex> {:ok, strategy} = Sconce.Evolve.Strategy.new([3.0, -2.0], sigma: 1.0, seed: 1)
      iex> for _generation <- 1..80 do
      ...>   {:ok, candidates} = Sconce.Evolve.Strategy.ask(strategy)
      ...>   fitness = for [x, y] <- candidates, do: -(x * x + y * y)
      ...>   {:ok, _generation} = Sconce.Evolve.Strategy.tell(strategy, fitness)
      ...> end
      iex> {:ok, best} = Sconce.Evolve.Strategy.best(strategy)
      iex> best.fitness > -1.0e-8
      true
      iex> inspect(strategy) =~ "#Sconce.Evolve.Strategy<cma_es · solutions of 2 · population 6 · generation 80 · best"
      true

  | method | the distribution | for | source |
  |---|---|---|---|
  | `:cma_es` | a full covariance matrix | up to a few hundred numbers, at most 1024 | Hansen 2016 |
  | `:sep_cma_es` | a diagonal one | thousands of numbers | Ros & Hansen 2008 |
  | `:snes` | a deviation for each number | thousands of numbers | Wierstra et al. 2014 |
  | `:open_ai_es` | one fixed deviation; mirrored pairs, ranks, Adam | weights of policies | Salimans et al. 2017 |

  `ask/1` and `tell/2` alternate. Candidates depend on the mean, the seed and the generation, so `ask/1` may be called
  again, also after a restart from a file.

  Tensors are those of `Sconce.Evolve.Archive`: solutions are 32-bit floats, a fitness is a 64-bit float. The native side
  computes with 64 bits, and rounds candidates.

  A fitness that is not finite is an error of kind `:non_finite` that names its candidate; the strategy then stays as it
  was. So does a distribution that diverges. Any process may use a strategy, one call at a time; a call during another one
  is of kind `:busy`. Calls run on native threads; large ones are in the background.
  """

  @enforce_keys [:ref, :size, :population, :form]
  defstruct @enforce_keys

  @typedoc "A strategy in native memory, with its sizes."
  @type t :: %__MODULE__{
          ref: reference,
          size: pos_integer,
          population: pos_integer,
          form: :list | :map | :nx
        }

  @type tensor :: Sconce.Evolve.Archive.tensor()

  @doc """
  Creates a strategy that begins at a mean `{n}`.

  #{Options.docs(@new ++ Tensors.schema())}

      iex> {:ok, strategy} = Sconce.Evolve.Strategy.new(List.duplicate(0.0, 100), method: :snes, population: 40)
      iex> {strategy.size, strategy.population}
      {100, 40}
      iex> {:error, error} = Sconce.Evolve.Strategy.new([0.0], method: :open_ai_es, population: 5)
      iex> Exception.message(error)
      "strategy: population: expected an even number, got 5"
  """
  @spec new(tensor, keyword) :: {:ok, t} | {:error, Error.t()}
  def new(mean, opts \\ []) do
    {[as: as], opts} = opts |> Options.validate!(@new ++ Tensors.schema()) |> Keyword.split([:as])

    form = Tensors.form!(as)

    with {:ok, mean} <- Tensors.vector(mean, "mean", :strategy),
         {:ok, made} <- Call.in_background(&Native.strategy_new(&1, mean, Map.new(opts))),
         do: {:ok, strategy(made, form)}
  end

  defp strategy({ref, {size, population}}, form),
    do: %__MODULE__{ref: ref, size: size, population: population, form: form}

  @doc """
  Returns the candidates of this generation, `{population, n}`.

      iex> {:ok, strategy} = Sconce.Evolve.Strategy.new([0.0, 0.0, 0.0], population: 4)
      iex> {:ok, candidates} = Sconce.Evolve.Strategy.ask(strategy)
      iex> for candidate <- candidates, do: length(candidate)
      [3, 3, 3, 3]
      iex> Sconce.Evolve.Strategy.ask(strategy) == {:ok, candidates}
      true
  """
  @spec ask(t) :: {:ok, tensor} | {:error, Error.t()}
  def ask(%__MODULE__{ref: ref, size: size, form: form}) do
    with {:ok, [candidates]} <- Call.in_background(&Native.strategy_ask(ref, &1)),
         do: {:ok, Tensors.write(candidates, {:f, 32}, size, form)}
  end

  @doc """
  Moves the distribution by the fitness `{population}` of the candidates of `ask/1`, and returns the number of finished
  generations. A higher fitness is better.

      iex> {:ok, strategy} = Sconce.Evolve.Strategy.new([0.0], population: 4)
      iex> Sconce.Evolve.Strategy.tell(strategy, [0.5, 0.1, 0.3, 0.2])
      {:ok, 1}
      iex> {:error, error} = Sconce.Evolve.Strategy.tell(strategy, [0.5])
      iex> Exception.message(error)
      "tell: fitness: expected 4, got 1"
  """
  @spec tell(t, tensor) :: {:ok, pos_integer} | {:error, Error.t()}
  def tell(%__MODULE__{ref: ref}, fitness) do
    with {:ok, fitness} <- Tensors.vector(fitness, "fitness", :tell),
         do: Call.in_background(&Native.strategy_tell(ref, &1, fitness))
  end

  @doc """
  Returns figures.

  | key | content |
  |---|---|
  | `method` | the method |
  | `generation` | number of finished generations |
  | `sigma` | size of a step; of `:snes` the geometric mean of all deviations |
  | `best` | highest fitness of all generations; nil before the first |

      iex> {:ok, strategy} = Sconce.Evolve.Strategy.new([0.0, 0.0], sigma: 0.25)
      iex> Sconce.Evolve.Strategy.info(strategy)
      {:ok, %{method: :cma_es, generation: 0, sigma: 0.25, best: nil}}
  """
  @spec info(t) :: {:ok, map} | {:error, Error.t()}
  def info(%__MODULE__{ref: ref}) do
    with {:ok, info} <- Call.in_background(&Native.strategy_info(ref, &1)),
         do: {:ok, Map.update!(info, :method, &method/1)}
  end

  for method <- @methods, do: defp(method(unquote(Atom.to_string(method))), do: unquote(method))

  @doc """
  Returns the mean of the distribution, `{n}`.

      iex> {:ok, strategy} = Sconce.Evolve.Strategy.new([0.5, -1.0])
      iex> Sconce.Evolve.Strategy.mean(strategy)
      {:ok, [0.5, -1.0]}
  """
  @spec mean(t) :: {:ok, tensor} | {:error, Error.t()}
  def mean(%__MODULE__{ref: ref, form: form}) do
    with {:ok, [mean | _best]} <- Call.in_background(&Native.strategy_solutions(ref, &1)),
         do: {:ok, Tensors.write(mean, {:f, 32}, nil, form)}
  end

  @doc """
  Returns the candidate with the highest fitness of all generations as `%{solution: tensor, fitness: float}`, or nil before
  the first. Of equal ones it is the first.

      iex> {:ok, strategy} = Sconce.Evolve.Strategy.new([0.0], population: 2)
      iex> Sconce.Evolve.Strategy.best(strategy)
      {:ok, nil}
      iex> {:ok, [_first, second]} = Sconce.Evolve.Strategy.ask(strategy)
      iex> {:ok, 1} = Sconce.Evolve.Strategy.tell(strategy, [0.0, 1.0])
      iex> Sconce.Evolve.Strategy.best(strategy) == {:ok, %{solution: second, fitness: 1.0}}
      true
  """
  @spec best(t) :: {:ok, %{solution: tensor, fitness: float} | nil} | {:error, Error.t()}
  def best(%__MODULE__{ref: ref, form: form}) do
    case Call.in_background(&Native.strategy_solutions(ref, &1)) do
      {:ok, [_mean]} ->
        {:ok, nil}

      {:ok, [_mean, best, <<fitness::float-64-little>>]} ->
        {:ok, %{solution: Tensors.write(best, {:f, 32}, nil, form), fitness: fitness}}

      error ->
        error
    end
  end

  @doc """
  Writes the strategy to a file. The file is the whole new one, or the old one stays. A failed write is an error of kind
  `:io` or `:not_found`.

      iex> {:ok, strategy} = Sconce.Evolve.Strategy.new([0.0, 0.0], seed: 5)
      iex> path = Path.join(System.tmp_dir!(), "sconce-strategy-#{System.pid()}.safetensors")
      iex> :ok = Sconce.Evolve.Strategy.save(strategy, path)
      iex> {:ok, loaded} = Sconce.Evolve.Strategy.load(path)
      iex> {Sconce.Evolve.Strategy.ask(loaded) == Sconce.Evolve.Strategy.ask(strategy), File.rm(path)}
      {true, :ok}
  """
  @spec save(t, Path.t()) :: :ok | {:error, Error.t()}
  def save(%__MODULE__{ref: ref}, path),
    do: Kept.save(path, &Native.strategy_save(ref, &1, &2))

  @doc """
  Reads the strategy of a file, equal to the bit; `save/2` has an example.

  A file that is cut or changed is an error of kind `:corrupt`, and another kind of file is one of kind `:corrupt` or
  `:mismatch`.

  #{Options.docs(Tensors.schema())}
  """
  @spec load(Path.t(), keyword) :: {:ok, t} | {:error, Error.t()}
  def load(path, opts \\ []),
    do: Kept.load(path, opts, &Native.strategy_load/2, &strategy/2)

  defimpl Inspect do
    alias Sconce.{Figures, Native}

    def inspect(%{ref: ref, size: size, population: population}, _opts)
        when is_integer(size) and is_integer(population) do
      sizes = "solutions of #{Figures.grouped(size)} · population #{Figures.grouped(population)}"

      case Native.strategy_generation(ref) do
        {:ok, [method, generation, best]} ->
          generation = "generation #{Figures.grouped(generation)}"
          best = if best, do: " · best #{best}", else: ""
          "#Sconce.Evolve.Strategy<#{method} · #{sizes} · #{generation}#{best}>"

        {:error, _busy_or_elsewhere} ->
          "#Sconce.Evolve.Strategy<#{sizes}>"
      end
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.Evolve.Strategy<>"
  end
end
