defmodule Sconce.Evolve.Neat do
  alias Sconce.Compress.Numbers
  alias Sconce.Evolve.Neat.{Catalogue, Graph}
  alias Sconce.Evolve.{Kept, Tensors}
  alias Sconce.{Error, Native, Options}
  alias Sconce.Native.Call
  alias Sconce.Trainer.Curve.Page

  @new Catalogue.schema(:new)
  @distance Catalogue.schema(:distance)
  @fit Catalogue.schema(:fit)
  @svg Catalogue.schema(:svg)

  @moduledoc """
  Networks whose weights and connections evolve: NEAT (Stanley & Miikkulainen 2002).

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 2, outputs: 1, seed: 1)
      iex> inputs = [[0, 0], [0, 1], [1, 0], [1, 1]]
      iex> {:ok, fit} = Sconce.Evolve.Neat.fit(neat, inputs, [[0], [1], [1], [0]], generations: 300, stop_at: 3.9)
      iex> fit.reached
      true
      iex> {:ok, best} = Sconce.Evolve.Neat.best(neat)
      iex> {:ok, outputs} = Sconce.Evolve.Neat.run(best.genome, inputs)
      iex> for [output] <- outputs, do: round(output)
      [0, 1, 1, 0]

  A genome is a feed-forward network. It has inputs, a bias node with the value 1, outputs, and hidden nodes. Each
  connection has an innovation number; the same structural change in one generation has the same number. Genomes begin
  with a connection of each input and the bias node to each output. Children of one or two parents of a species get
  nodes and connections. A connection that would close a cycle is never added.

  A loop of the app's own evaluates with `forward/2`, or takes genomes by `genome/2`, and ends a generation with
  `tell/2`. `fit/4` is that loop in native code for fixed inputs and targets.

  Children follow these rules:

    * Species share fitness: the number of children is in proportion to the mean fitness of a species, less the lowest
      fitness of all, and all children together are the population.
    * A child of two parents takes each weight that both have from either one, and all else from the fitter one. Of
      equally fit ones that is the one with fewer connections. A connection that is disabled in a parent is disabled in
      three of four children.
    * A genome joins the species of the nearest representative if the distance is below the threshold. The
      representative of a species is the genome nearest to the last one. The threshold moves towards the wanted number
      of species.
    * A species whose best fitness does not rise for some generations ends.

  Outputs are 32-bit floats, a fitness is a 64-bit float. Values of nodes beyond 1e18 are cut. Tensors are those of
  `Sconce.Evolve.Archive`. Results depend on the seed alone, not on the number of threads.

  A fitness that is not finite is an error of kind `:non_finite` that names its genome; the population then stays as it
  was. Any process may use a population, one call at a time; a call during another one is of kind `:busy`.
  """

  @enforce_keys [:ref, :inputs, :outputs, :population, :form]
  defstruct @enforce_keys

  @typedoc "A population in native memory, with its sizes."
  @type t :: %__MODULE__{
          ref: reference,
          inputs: pos_integer,
          outputs: pos_integer,
          population: pos_integer,
          form: :list | :map | :nx
        }

  @type tensor :: Sconce.Evolve.Archive.tensor()

  @type activation :: :sigmoid | :steep_sigmoid | :tanh | :relu | :identity

  @typedoc """
  A network as data. The nodes 0, 1, .. are inputs, the bias node and outputs; hidden nodes have higher numbers. A
  `:steep_sigmoid` is `1 / (1 + exp(-4.9 x))`.
  """
  @type genome :: %{
          hidden_activation: activation,
          output_activation: activation,
          nodes: [%{id: non_neg_integer, kind: :input | :bias | :output | :hidden}],
          connections: [
            %{
              innovation: non_neg_integer,
              source: non_neg_integer,
              target: non_neg_integer,
              weight: float,
              enabled: boolean
            }
          ]
        }

  @doc """
  Creates a population.

  #{Options.docs(@new ++ Tensors.schema())}

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 3, outputs: 2, population: 20, hidden_activation: :tanh)
      iex> neat
      #Sconce.Evolve.Neat<3 inputs · 2 outputs · population 20 · generation 0>
      iex> {:error, error} = Sconce.Evolve.Neat.new(inputs: 3, outputs: 2, weight_range: 40)
      iex> Exception.message(error)
      "neat: weight_range: 40 is outside 0..30"
  """
  @spec new(keyword) :: {:ok, t} | {:error, Error.t()}
  def new(opts) do
    {[as: as], opts} = opts |> Options.validate!(@new ++ Tensors.schema()) |> Keyword.split([:as])
    form = Tensors.form!(as)

    with {:ok, made} <- Call.in_background(&Native.neat_new(&1, Map.new(opts))),
         do: {:ok, neat(made, form)}
  end

  defp neat({ref, {inputs, outputs, population}}, form) do
    %__MODULE__{ref: ref, inputs: inputs, outputs: outputs, population: population, form: form}
  end

  @doc """
  Returns the outputs of all genomes on the same inputs `{patterns, inputs}`: `{population, patterns, outputs}`.

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 2, outputs: 1, population: 5)
      iex> {:ok, outputs} = Sconce.Evolve.Neat.forward(neat, [[0.5, 1.0], [0.0, 0.0]])
      iex> for patterns <- outputs, do: for([output] <- patterns, do: output >= 0 and output <= 1)
      List.duplicate([true, true], 5)
      iex> {:error, error} = Sconce.Evolve.Neat.forward(neat, [[0.5, 1.0, 2.0]])
      iex> Exception.message(error)
      "forward: inputs: expected rows of 2, got the shape {1, 3}"
  """
  @spec forward(t, tensor) :: {:ok, tensor} | {:error, Error.t()}
  def forward(%__MODULE__{ref: ref, population: population, form: form} = neat, inputs) do
    with {:ok, inputs} <- Tensors.rows(inputs, {:f, 32}, neat.inputs, "inputs", :forward),
         patterns = div(byte_size(inputs), 4 * neat.inputs),
         {:ok, [outputs]} <- Call.in_background(&Native.neat_forward(ref, &1, inputs, patterns)),
         do: {:ok, Numbers.write(outputs, {:f, 32}, {population, patterns, neat.outputs}, form)}
  end

  @doc """
  Ends a generation with the fitness `{population}` of its genomes, and returns the number of finished generations. A
  higher fitness is better.

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 2, outputs: 1, population: 4)
      iex> Sconce.Evolve.Neat.tell(neat, [0.5, 0.1, 0.3, 0.2])
      {:ok, 1}
      iex> {:error, error} = Sconce.Evolve.Neat.tell(neat, [0.5])
      iex> Exception.message(error)
      "tell: fitness: expected 4, got 1"
  """
  @spec tell(t, tensor) :: {:ok, pos_integer} | {:error, Error.t()}
  def tell(%__MODULE__{ref: ref}, fitness) do
    with {:ok, fitness} <- Tensors.vector(fitness, "fitness", :tell),
         do: Call.in_background(&Native.neat_tell(ref, &1, fitness))
  end

  @doc """
  Evolves a population that shall map inputs `{patterns, inputs}` to targets `{patterns, outputs}`.

  The fitness of a genome is the number of targets minus the sum of squared errors: 4 at most on the four patterns of
  XOR. The call ends after `:generations`, or with the population in which a fitness reaches `:stop_at`. If the calling
  process dies, it ends soon, and the finished generations stay.

  #{Options.docs(@fit)}

  | key | content |
  |---|---|
  | `generations` | populations that were evaluated |
  | `best` | the highest fitness among them |
  | `reached` | whether it is at least `:stop_at` |
  | `seconds` | time of the stages `evaluation`, `variation` and `species` |

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 1, outputs: 1, output_activation: :identity, population: 50)
      iex> {:ok, fit} = Sconce.Evolve.Neat.fit(neat, [[0], [1], [2]], [[1], [3], [5]], generations: 200, stop_at: 2.9)
      iex> {fit.reached, fit.best >= 2.9, Enum.sort(Map.keys(fit.seconds))}
      {true, true, [:evaluation, :species, :variation]}
  """
  @spec fit(t, tensor, tensor, keyword) :: {:ok, map} | {:error, Error.t()}
  def fit(%__MODULE__{ref: ref} = neat, inputs, targets, opts \\ []) do
    [generations: generations, stop_at: stop_at] = Options.validate!(opts, @fit)

    with {:ok, inputs} <- Tensors.rows(inputs, {:f, 32}, neat.inputs, "inputs", :fit),
         {:ok, targets} <- Tensors.rows(targets, {:f, 32}, neat.outputs, "targets", :fit),
         given = [inputs, targets],
         {:ok, fit} <- Call.in_background(&Native.neat_fit(ref, &1, given, generations, stop_at)) do
      {seconds, fit} = Map.split(fit, [:evaluation, :variation, :species])
      {:ok, Map.put(fit, :seconds, seconds)}
    end
  end

  @doc """
  Returns a genome of this generation as data. An index that is not below the population is an error of kind
  `:out_of_range`.

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 1, outputs: 1, population: 4)
      iex> {:ok, genome} = Sconce.Evolve.Neat.genome(neat, 3)
      iex> genome.nodes
      [%{id: 0, kind: :input}, %{id: 1, kind: :bias}, %{id: 2, kind: :output}]
      iex> for connection <- genome.connections, do: {connection.source, connection.target, connection.enabled}
      [{0, 2, true}, {1, 2, true}]
  """
  @spec genome(t, non_neg_integer) :: {:ok, genome} | {:error, Error.t()}
  def genome(%__MODULE__{ref: ref}, at) when at in 0..0xFFFF_FFFF do
    with {:ok, genome} <- Call.in_background(&Native.neat_genome(ref, &1, at)),
         do: {:ok, named(genome)}
  end

  def genome(%__MODULE__{}, other),
    do: Options.argument!("at", other, "the index of a genome")

  @doc """
  Returns the best genome of all generations as `%{genome: genome, fitness: float}`, or nil before the first. Of equal
  ones it is the first.

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 1, outputs: 1, population: 2)
      iex> Sconce.Evolve.Neat.best(neat)
      {:ok, nil}
      iex> {:ok, second} = Sconce.Evolve.Neat.genome(neat, 1)
      iex> {:ok, 1} = Sconce.Evolve.Neat.tell(neat, [0.0, 1.0])
      iex> Sconce.Evolve.Neat.best(neat) == {:ok, %{genome: second, fitness: 1.0}}
      true
  """
  @spec best(t) :: {:ok, %{genome: genome, fitness: float} | nil} | {:error, Error.t()}
  def best(%__MODULE__{ref: ref}) do
    case Call.in_background(&Native.neat_best(ref, &1)) do
      {:ok, %{genome: genome} = best} -> {:ok, %{best | genome: named(genome)}}
      nil_or_error -> nil_or_error
    end
  end

  # The native side has no atoms of users, so names are text there.
  defp named(genome) do
    %{
      genome
      | hidden_activation: activation(genome.hidden_activation),
        output_activation: activation(genome.output_activation),
        nodes: for(node <- genome.nodes, do: %{node | kind: kind(node.kind)})
    }
  end

  for name <- Catalogue.activations(),
      do: defp(activation(unquote(Atom.to_string(name))), do: unquote(name))

  for name <- [:input, :bias, :output, :hidden],
      do: defp(kind(unquote(Atom.to_string(name))), do: unquote(name))

  @doc """
  Returns figures.

  | key | content |
  |---|---|
  | `generation` | number of finished generations |
  | `species` | of each species `id`, `size`, `best` fitness, and the generations `created` and `improved` |
  | `threshold` | distance below which a genome joins a species |
  | `best` | highest fitness of all generations; nil before the first |
  | `generation_best`, `generation_mean` | highest and mean fitness of the last generation with a fitness |
  | `hidden_nodes`, `connections`, `enabled_connections` | means of all genomes |

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 2, outputs: 1, population: 10, threshold: 100)
      iex> {:ok, stats} = Sconce.Evolve.Neat.stats(neat)
      iex> {stats.species, stats.connections, stats.best}
      {[%{id: 1, size: 10, best: nil, created: 0, improved: 0}], 3.0, nil}
  """
  @spec stats(t) :: {:ok, map} | {:error, Error.t()}
  def stats(%__MODULE__{ref: ref}), do: Call.in_background(&Native.neat_stats(ref, &1))

  @doc """
  Returns the outputs of one genome on inputs `{patterns, inputs}`: `{patterns, outputs}`.

  The genome may come from anywhere. One that is no network is an error that names the fault, such as a cycle.

  #{Options.docs(Tensors.schema())}

      iex> nodes = [%{id: 0, kind: :input}, %{id: 1, kind: :bias}, %{id: 2, kind: :output}, %{id: 3, kind: :hidden}]
      iex> link = fn innovation, source, target, weight ->
      ...>   %{innovation: innovation, source: source, target: target, weight: weight, enabled: true}
      ...> end
      iex> genome = %{
      ...>   hidden_activation: :relu,
      ...>   output_activation: :identity,
      ...>   nodes: nodes,
      ...>   connections: [link.(0, 0, 3, 2.0), link.(1, 1, 3, -1.0), link.(2, 3, 2, 0.5)]
      ...> }
      iex> Sconce.Evolve.Neat.run(genome, [[0.0], [1.0], [3.0]])
      {:ok, [[0.0], [0.5], [2.5]]}
      iex> cycle = %{genome | connections: [link.(3, 3, 3, 1.0)]}
      iex> {:error, error} = Sconce.Evolve.Neat.run(cycle, [[0.0]])
      iex> Exception.message(error)
      "run: the genome: expected connections without a cycle, got a cycle through node 3"
  """
  @spec run(genome, tensor, keyword) :: {:ok, tensor} | {:error, Error.t()}
  def run(genome, inputs, opts \\ []) do
    [as: as] = Options.validate!(opts, Tensors.schema())
    form = Tensors.form!(as)
    genome = genome!(genome, "genome")

    with {:ok, data, patterns} <- patterns(inputs),
         {:ok, [outputs]} <- Call.in_background(&Native.neat_run(&1, genome, data, patterns)),
         do: {:ok, Numbers.write(outputs, {:f, 32}, {patterns, width(outputs, patterns)}, form)}
  end

  defp patterns(inputs) do
    case Numbers.read(inputs, {:f, 32}, "inputs", :run) do
      {:ok, %{shape: {patterns, _inputs}, data: data}} when patterns > 0 ->
        {:ok, data, patterns}

      {:ok, %{shape: shape}} ->
        Numbers.misfit("inputs", "rows", "the shape #{inspect(shape)}", :run)

      error ->
        error
    end
  end

  defp width(outputs, patterns), do: div(byte_size(outputs), 4 * patterns)

  defp genome!(%{nodes: nodes, connections: connections} = genome, _what)
       when is_list(nodes) and is_list(connections),
       do: genome

  defp genome!(other, what), do: Options.argument!(what, other, "a map of nodes and connections")

  @doc """
  Returns the distance of two genomes. Genomes with other inputs or outputs are an error of kind `:mismatch`.

  #{Options.docs(@distance)}

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 2, outputs: 1, population: 4)
      iex> {:ok, a} = Sconce.Evolve.Neat.genome(neat, 0)
      iex> {connection, rest} = List.pop_at(a.connections, 0)
      iex> b = %{a | connections: [%{connection | weight: connection.weight + 3} | rest]}
      iex> {:ok, distance} = Sconce.Evolve.Neat.distance(a, b)
      iex> Float.round(distance, 6)
      0.4
      iex> Sconce.Evolve.Neat.distance(a, %{a | connections: rest}, small_genome: 0)
      {:ok, 1 / 3}
  """
  @spec distance(genome, genome, keyword) :: {:ok, float} | {:error, Error.t()}
  def distance(a, b, opts \\ []) do
    opts = opts |> Options.validate!(@distance) |> Map.new()
    genomes = [genome!(a, "first genome"), genome!(b, "second genome")]
    Call.in_background(&Native.neat_distance(&1, genomes, opts))
  end

  @doc """
  Returns a picture of a genome as the text of an SVG file: nodes by layer, inputs on the left, outputs on the right.
  The color of a connection is the sign of its weight, its width the magnitude. A disabled one is dashed.

  #{Options.docs(@svg)}

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 2, outputs: 1, population: 4)
      iex> {:ok, genome} = Sconce.Evolve.Neat.genome(neat, 0)
      iex> {:ok, svg} = Sconce.Evolve.Neat.svg(genome, title: "A first genome")
      iex> svg =~ "A first genome" and svg =~ "0 hidden nodes, 3 of 3 connections enabled"
      true
  """
  @spec svg(genome, keyword) :: {:ok, String.t()} | {:error, Error.t()}
  def svg(genome, opts \\ []) do
    opts = Options.validate!(opts, @svg)
    genome = genome!(genome, "genome")

    with {:ok, layers} <- Call.in_background(&Native.neat_layers(&1, genome)),
         do: {:ok, Graph.svg(genome, layers, opts)}
  end

  @doc """
  Writes `svg/2` to a file. A path that does not end in `.svg` is an error of kind `:mismatch`, and a failed write is one
  of kind `:io`.

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 2, outputs: 1, population: 4)
      iex> {:ok, genome} = Sconce.Evolve.Neat.genome(neat, 0)
      iex> path = Path.join(System.tmp_dir!(), "sconce-neat-#{System.pid()}.svg")
      iex> {Sconce.Evolve.Neat.write(genome, path), File.rm(path)}
      {:ok, :ok}
  """
  @spec write(genome, Path.t(), keyword) :: :ok | {:error, Error.t()}
  def write(genome, path, opts \\ []) do
    path = Options.path!(path)

    with :ok <- Page.check(path, :write_svg),
         {:ok, svg} <- svg(genome, opts),
         do: Page.write(svg, path, :write_svg)
  end

  @doc """
  Writes the population to a file. The file is the whole new one, or the old one stays. A failed write is an error of kind
  `:io` or `:not_found`.

      iex> {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 2, outputs: 1, population: 10)
      iex> path = Path.join(System.tmp_dir!(), "sconce-neat-#{System.pid()}.safetensors")
      iex> :ok = Sconce.Evolve.Neat.save(neat, path)
      iex> {:ok, loaded} = Sconce.Evolve.Neat.load(path)
      iex> {Sconce.Evolve.Neat.genome(loaded, 9) == Sconce.Evolve.Neat.genome(neat, 9), File.rm(path)}
      {true, :ok}
  """
  @spec save(t, Path.t()) :: :ok | {:error, Error.t()}
  def save(%__MODULE__{ref: ref}, path),
    do: Kept.save(path, &Native.neat_save(ref, &1, &2))

  @doc """
  Reads the population of a file, equal to the bit; `save/2` has an example.

  A file that is cut or changed is an error of kind `:corrupt`, and another kind of file is one of kind `:corrupt` or
  `:mismatch`.

  #{Options.docs(Tensors.schema())}
  """
  @spec load(Path.t(), keyword) :: {:ok, t} | {:error, Error.t()}
  def load(path, opts \\ []),
    do: Kept.load(path, opts, &Native.neat_load/2, &neat/2)

  defimpl Inspect do
    alias Sconce.{Figures, Native}

    def inspect(%{ref: ref, inputs: inputs, outputs: outputs, population: population}, _opts)
        when is_integer(inputs) and is_integer(outputs) and is_integer(population) do
      ends = "#{Figures.counted(inputs, "input")} · #{Figures.counted(outputs, "output")}"
      sizes = "#{ends} · population #{Figures.grouped(population)}"

      case Native.neat_info(ref) do
        {:ok, [generation, best]} ->
          best = if best, do: " · best #{best}", else: ""
          "#Sconce.Evolve.Neat<#{sizes} · generation #{Figures.grouped(generation)}#{best}>"

        {:error, _busy_or_elsewhere} ->
          "#Sconce.Evolve.Neat<#{sizes}>"
      end
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.Evolve.Neat<>"
  end
end
