defmodule Sconce.Evolve.Population do
  alias Sconce.{Device, Env, Error, Native, Options, Policy}
  alias Sconce.Evolve.{Archive, Catalogue, Tensors}
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec

  @new Catalogue.schema(:population)
  @device Catalogue.schema(:device)
  @vary Catalogue.schema(:vary)
  @episodes Catalogue.schema(:episodes)

  @moduledoc """
  Many small policies of one Spec, whose numbers stay in native memory.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [8])
      iex> {:ok, population} = Sconce.Evolve.Population.new(spec, count: 100, seed: 1)
      iex> population
      #Sconce.Evolve.Population<100 · vector 4 -> mlp tanh 8 -> action(2) · solutions of 58 · f32>
      iex> {:ok, played} = Sconce.Evolve.Population.episodes(population, :cart_pole, episodes: 3)
      iex> length(played.returns)
      100

  A solution is the vector of all numbers of an individual, as 32-bit floats: of each layer the weights
  `{outputs, inputs}`, then the biases. First come the layers of the backbone, then those of the heads. It is a solution
  of `Sconce.Evolve.Archive` and of `Sconce.Evolve.Strategy`, and `policy/2` makes a `Sconce.Policy` of it, which any
  session plays.

  ## Which policies

  The embedding is `{:vector, n}`, the backbone `:mlp` without norms and skips, and the heads are independent, without a
  value. One vector lane is one individual, so a forward pass reads each number once.

  | storage | bytes of a weight | error |
  |---|---|---|
  | `:f32` | 4 | none |
  | `:bf16` | 2 | 2^-9 of its size |
  | `:int8` | 1, and 4 a row | 1/254 of the largest weight of its row |

  Biases are 32-bit floats in each. Numbers are rounded when they are written, and `read/2` returns the rounded ones.
  Written to a population of `:f32`, the solution of an individual of `:f32` or `:bf16` computes exactly what the
  individual computes. That of an `:int8` individual computes nearly the same, because scales multiply sums and not
  weights. A `Sconce.Policy` sums in another order, so its logits differ by rounding errors with any storage.

  ## Episodes

  `episodes/3` plays whole episodes of all individuals in one call, each in an environment of its own. The likeliest
  action is chosen. Results depend on seeds, not on the number of threads.

  With `device: :cuda` forward passes and episodes run on an NVIDIA card, where a thread is an individual: one launch plays
  all episodes in a world of `Sconce.Env`, with the seeds and the resets of the CPU. Numbers agree up to rounding, which
  may turn a close decision. Variation stays on the CPU, and the next computation copies changed individuals to the card.
  Billiards and environments in Elixir are refused there by name. It has run on the emulated card only.

  Tensors are those of `Sconce.Evolve.Archive`. Any process may use a population, one call at a time; a call during
  another one is an error of kind `:busy`.
  """

  @enforce_keys [:ref, :spec, :count, :size, :inputs, :outputs, :bytes, :storage, :form]
  defstruct @enforce_keys ++ [device: %Device{}]

  @typedoc "A population in native memory, with its sizes."
  @type t :: %__MODULE__{
          ref: reference,
          spec: Spec.t(),
          count: pos_integer,
          size: pos_integer,
          inputs: pos_integer,
          outputs: pos_integer,
          bytes: pos_integer,
          storage: :f32 | :bf16 | :int8,
          form: :list | :map | :nx
        }

  @type tensor :: Archive.tensor()

  @doc """
  Returns the Spec of small policies for an environment: an MLP with tanh and linear heads. Options are those of
  `Sconce.Policy.Spec`.

      iex> Sconce.Evolve.Population.spec(:pendulum, hidden_sizes: [16, 16])
      #Sconce.Policy.Spec<vector 3 -> mlp tanh 16-16 -> action(2)>
  """
  @spec spec(Env.name(), keyword) :: Spec.t()
  def spec(env, opts \\ []) do
    {world, own} =
      opts |> Options.keyword!() |> Keyword.split(Keyword.keys(Env.Catalogue.schema(:spec)))

    case Env.spec(env, world) do
      {:ok, env} ->
        [embedding: {:vector, env.observation_size}, heads: env.heads]
        |> Keyword.merge(backbone: :mlp, hidden_sizes: [16], activation: :tanh)
        |> Keyword.merge(head_hidden_size: 0)
        |> Keyword.merge(own)
        |> Spec.new()

      {:error, error} ->
        raise ArgumentError, Exception.message(error)
    end
  end

  @doc """
  Creates a population of random individuals, around 0 or around a solution `:mean`.

  #{Options.docs(@new ++ @device ++ Tensors.schema())}

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [32, 16])
      iex> {:ok, population} = Sconce.Evolve.Population.new(spec, count: 4800, storage: :bf16)
      iex> {population.size, population.bytes}
      {722, 7411200}
      iex> {:error, error} = Sconce.Evolve.Population.new([embedding: {:vector, 2}, heads: [act: {:categorical, 2}]], count: 5)
      iex> Exception.message(error)
      "population: the backbone of a population: expected an MLP, got another"
  """
  @spec new(Spec.t() | keyword, keyword) :: {:ok, t} | {:error, Error.t()}
  def new(spec, opts) do
    {mean, opts} = opts |> Options.keyword!() |> Keyword.pop(:mean)
    opts = Options.validate!(opts, @new ++ @device ++ Tensors.schema())
    form = Tensors.form!(opts[:as])
    spec = Spec.new(spec)
    options = Map.new(Keyword.take(opts, Keyword.keys(@new)))

    with {:ok, mean} <- mean(mean),
         {:ok, device} <- Device.resolve(opts[:device]),
         options = Map.put(options, :device, to_string(device)),
         {:ok, {ref, {count, size, inputs, outputs, bytes}}} <-
           Call.in_background(&Native.population_new(&1, Spec.to_native(spec), options, mean)) do
      {:ok,
       %__MODULE__{
         ref: ref,
         spec: spec,
         count: count,
         size: size,
         inputs: inputs,
         outputs: outputs,
         bytes: bytes,
         storage: opts[:storage],
         form: form,
         device: device
       }}
    end
  end

  defp mean(nil), do: {:ok, ""}
  defp mean(mean), do: Tensors.vector(mean, {:f, 32}, "mean", :population)

  @doc """
  Returns the solutions of some individuals, or of all, `{individuals, size}`.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, population} = Sconce.Evolve.Population.new(spec, count: 20, as: :binaries)
      iex> {:ok, solutions} = Sconce.Evolve.Population.read(population)
      iex> {:ok, two} = Sconce.Evolve.Population.read(population, [0, 19])
      iex> {solutions.shape, two.shape}
      {{20, 30}, {2, 30}}
  """
  @spec read(t, :all | [non_neg_integer]) :: {:ok, tensor} | {:error, Error.t()}
  def read(population, which \\ :all)

  def read(%__MODULE__{ref: ref} = population, which) do
    call =
      case which do
        :all -> &Native.population_solutions(ref, &1)
        at -> &Native.population_read(ref, &1, positions(at))
      end

    with {:ok, [solutions]} <- Call.in_background(call),
         do: {:ok, Tensors.write(solutions, {:f, 32}, population.size, population.form)}
  end

  defp positions(at) do
    (proper?(at) and Enum.all?(at, &index?/1)) ||
      Options.argument!("individuals", at, "a list of integers from 0")

    for i <- at, into: <<>>, do: <<i::32-little>>
  end

  defp pairs(parents) do
    pair? = fn pair -> match?({a, b} when is_integer(a) and is_integer(b), pair) end

    (proper?(parents) and Enum.all?(parents, pair?)) ||
      Options.argument!("parents", parents, "a list of pairs of individuals")

    positions(for {a, b} <- parents, i <- [a, b], do: i)
  end

  defp proper?(list), do: is_list(list) and List.improper?(list) == false
  defp index?(i), do: is_integer(i) and i in 0..(2 ** 32 - 1)

  @doc """
  Writes solutions `{individuals, size}` from an individual on.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [1])
      iex> {:ok, population} = Sconce.Evolve.Population.new(spec, count: 3)
      iex> Sconce.Evolve.Population.write(population, 2, [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]])
      :ok
      iex> Sconce.Evolve.Population.read(population, [2])
      {:ok, [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]]}
  """
  @spec write(t, non_neg_integer, tensor) :: :ok | {:error, Error.t()}
  def write(%__MODULE__{ref: ref} = population, first, solutions) do
    index?(first) || Options.argument!("first", first, "an integer from 0")
    size = population.size || 0

    with {:ok, solutions} <- Tensors.rows(solutions, {:f, 32}, size, "solutions", :write),
         {:ok, true} <- Call.in_background(&Native.population_write(ref, &1, first, solutions)),
         do: :ok
  end

  @doc """
  Returns the logits of all individuals, `{count, outputs}`: of one observation `{inputs}`, or of one for each
  `{count, inputs}`.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, population} = Sconce.Evolve.Population.new(spec, count: 2, sigma: 0)
      iex> {:ok, logits} = Sconce.Evolve.Population.forward(population, [0.1, 0.2, 0.3, 0.4])
      iex> logits == [[0, 0], [0, 0]]
      true
  """
  @spec forward(t, tensor) :: {:ok, tensor} | {:error, Error.t()}
  def forward(%__MODULE__{ref: ref} = population, observations) do
    with {:ok, observations} <- Tensors.flat(observations, {:f, 32}, "observations", :forward),
         {:ok, [logits]} <-
           Call.in_background(&Native.population_forward(ref, &1, observations)),
         do: {:ok, Tensors.write(logits, {:f, 32}, population.outputs, population.form)}
  end

  @doc """
  Plays episodes of all individuals in an environment of `Sconce.Env.names/0`.

  Episodes are native. A world that is a module, see `Sconce.Env.World`, raises `ArgumentError`. An individual plays one
  seat: an environment of two, such as `:duel`, without an `:opponent` is an error of kind `:mismatch`. The death of the
  caller ends the episodes, on a card only before the launch.

  | key | content |
  |---|---|
  | `returns` | `{count}`, 64-bit floats: the mean return of an individual's episodes |
  | `measures` | `{count, measures}`, 64-bit floats |
  | `decisions` | the number of all decisions |

  #{Options.docs(@episodes)}

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, population} = Sconce.Evolve.Population.new(spec, count: 2, sigma: 0)
      iex> {:ok, played} = Sconce.Evolve.Population.episodes(population, :cart_pole, measures: [:length, {:input, 0}])
      iex> [length, input] = hd(played.measures)
      iex> {[length] == Enum.take(played.returns, 1), input}
      {true, 0.0}
  """
  @spec episodes(t, Env.name(), keyword) :: {:ok, map} | {:error, Error.t()}
  def episodes(%__MODULE__{ref: ref, form: form}, env, opts \\ []) do
    options = Catalogue.episodes(env, Options.validate!(opts, @episodes))
    width = length(options.measures)

    with {:ok, [returns, measures, <<decisions::float-64-little>>]} <-
           Call.in_background(&Native.population_episodes(ref, &1, options)) do
      measures = if width > 0, do: Tensors.write(measures, {:f, 64}, width, form)
      returns = Tensors.write(returns, {:f, 64}, nil, form)
      {:ok, %{returns: returns, measures: measures, decisions: trunc(decisions)}}
    end
  end

  @doc """
  Replaces all individuals by children: of random pairs of them, of the pairs `:parents` (a list of `{first, second}`,
  one for each child), or of random pairs of elites of an archive `:from`. Without a pair, `:parents` is as if it were not
  given. Beside `:from` it is ignored.

  #{Options.docs(@vary)}

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, population} = Sconce.Evolve.Population.new(spec, count: 2)
      iex> {:ok, [first, _second]} = Sconce.Evolve.Population.read(population)
      iex> Sconce.Evolve.Population.vary(population, parents: [{0, 0}, {0, 0}], iso_sigma: 0)
      :ok
      iex> Sconce.Evolve.Population.read(population) == {:ok, [first, first]}
      true
  """
  @spec vary(t, keyword) :: :ok | {:error, Error.t()}
  def vary(%__MODULE__{ref: ref}, opts \\ []) do
    {own, opts} = opts |> Options.keyword!() |> Keyword.split([:from, :parents])
    opts = Options.validate!(opts, @vary)
    {variation, stream} = {Catalogue.variation(opts), {opts[:seed], opts[:generation]}}

    call =
      case own[:from] do
        nil ->
          pairs = pairs(own[:parents] || [])
          &Native.population_vary(ref, &1, variation, pairs, stream)

        %Archive{ref: archive} ->
          &Native.population_vary_from(ref, &1, archive, variation, stream)

        other ->
          Options.argument!("from", other, "a Sconce.Evolve.Archive")
      end

    with {:ok, true} <- Call.in_background(call), do: :ok
  end

  @doc """
  Returns the policy of a solution `{size}`.

      iex> spec = Sconce.Evolve.Population.spec(:cart_pole, hidden_sizes: [4])
      iex> {:ok, population} = Sconce.Evolve.Population.new(spec, count: 2)
      iex> {:ok, [solution]} = Sconce.Evolve.Population.read(population, [1])
      iex> {:ok, policy} = Sconce.Evolve.Population.policy(spec, solution)
      iex> Sconce.Evolve.Population.solution(policy)
      {:ok, solution}
  """
  @spec policy(Spec.t() | keyword, tensor) :: {:ok, Policy.t()} | {:error, Error.t()}
  def policy(spec, solution) do
    spec = spec |> Spec.new() |> Spec.to_native()

    with {:ok, solution} <- Tensors.vector(solution, {:f, 32}, "solution", :policy),
         {:ok, ref} <- Call.run(&Native.population_policy(&1, spec, solution)),
         do: Policy.wrap(ref, %Sconce.Device{})
  end

  @doc """
  Returns the solution of a policy, a list of `size` numbers, or another form by `:as` as in `new/2`. `policy/2` has an
  example.
  """
  @spec solution(Policy.t(), keyword) :: {:ok, tensor} | {:error, Error.t()}
  def solution(%Policy{ref: ref}, opts \\ []) do
    [as: as] = Options.validate!(opts, Tensors.schema())

    with {:ok, [solution]} <- Call.run(&Native.population_solution(&1, ref)),
         do: {:ok, Tensors.write(solution, {:f, 32}, nil, Tensors.form!(as))}
  end

  defimpl Inspect do
    def inspect(%{spec: %Spec{} = spec, count: count, size: size, storage: storage} = own, _opts) do
      "#Sconce.Policy.Spec<" <> rest = Kernel.inspect(spec)
      network = String.trim_trailing(rest, ">")

      "#Sconce.Evolve.Population<#{count} · #{network} · solutions of #{size} · #{storage}#{there(own)}>"
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.Evolve.Population<>"

    defp there(%{device: %Sconce.Device{kind: :cuda} = device}), do: " · #{device}"
    defp there(_own), do: ""
  end
end
