defmodule Sconce.Evolve.Settings do
  @moduledoc false
  # The settings of `mix sconce.evolve`: its switches, presets, and the search that they describe.

  alias Sconce.{Env, Options, Switches}
  alias Sconce.Evolve.{Archive, Catalogue, Population, Search}

  @archives "grid:50x50, voronoi:1000, unstructured:1000:0.1 or none"
  @doc_grid "`grid:50x50`, `voronoi:1000`, `unstructured:1000:0.1` (at most 1000 cells of radius 0.1), or `none` for a strategy " <>
              "without an archive."

  @own [
    preset: [type: {:or, [nil, :string]}, doc: "Named settings, see below."],
    env: [type: {:or, [nil, :string]}, doc: "Environment, required without a preset."],
    out: [type: :path, doc: "Folder of the run, required."],
    resume: [
      type: :path,
      doc: "Folder of the run to resume; without a folder that of `--out`."
    ],
    generations: [
      type: :pos_integer,
      default: 100,
      max: 2 ** 53,
      doc: "Generations, those before a resume included."
    ],
    hidden_sizes: [type: {:list, :pos_integer}, default: [16], doc: "Widths of the MLP's layers."],
    archive: [type: :string, default: "none", doc: @doc_grid],
    ranges: [
      type: {:or, [nil, :string]},
      doc: "Lowest and highest value of each measure, as in `-1..1,0..1`."
    ],
    measures: [
      type: {:or, [nil, :string]},
      doc:
        "Measures, as in `final:0,observation:2,input:0,length`; see `Sconce.Evolve.Population`."
    ],
    source: [
      type: {:or, [nil, :string]},
      doc:
        "`elites` (the default with an archive), `cma_me:N`, `cma_mae:N`, `cma_es`, `sep_cma_es` (the default without " <>
          "one), `snes` or `open_ai_es`."
    ],
    qd_offset: [
      type: :float,
      default: 0.0,
      doc: "Subtracted from each return in the QD score: the lowest one that is possible."
    ],
    threshold_min: [
      type: {:or, [:float, nil]},
      doc: "Threshold of an empty cell, required by `cma_mae`."
    ],
    archive_rate: [
      type: :float,
      default: 1.0,
      min: 0,
      max: 1,
      doc:
        "Share by which an accepted return moves the threshold of its cell; below 1 with `cma_mae`."
    ],
    crossover: [
      type: {:or, [nil, :string]},
      doc: "`sbx:INDEX`, `uniform:RATE` or `holographic`, instead of the step along a line."
    ],
    bounds: [
      type: {:or, [nil, :string]},
      doc: "Lowest and highest number of a child, as in `-3..3`."
    ],
    save_seconds: [type: :float, default: 60.0, min: 0, doc: "Seconds between saves."]
  ]
  @before [
    plan: [type: :boolean, default: false, doc: "Prints bytes and time of the run, and ends."],
    sweep: [
      type: :boolean,
      default: false,
      doc: "Measures evaluations a second by `--batch`, and ends."
    ]
  ]
  @apart [:measures, :source, :crossover, :bounds]
  @search Keyword.drop(
            Catalogue.schema(:search) ++ Catalogue.schema(:episodes),
            @apart ++ [:opponent, :reward_weights]
          ) ++
            [
              opponent: [type: {:or, [nil, :string]}, doc: "Scripted player of the second seat."],
              reward_weights: [
                type: {:or, [nil, :string]},
                doc: "Weights of the reward terms, as in `target=20,scratch=-15`."
              ]
            ]

  @presets [
    cart_pole: [
      env: "cart_pole",
      hidden_sizes: [8],
      source: "sep_cma_es",
      batch: 64,
      episodes: 4,
      new_starts: true
    ],
    pendulum: [
      env: "pendulum",
      hidden_sizes: [8],
      source: "sep_cma_es",
      batch: 64,
      episodes: 8,
      generations: 150,
      new_starts: true
    ],
    carts: [
      env: "cart_pole",
      hidden_sizes: [8],
      archive: "grid:50x50",
      measures: "final:0,input:0",
      ranges: "-2.4..2.4,0..1",
      batch: 1024
    ],
    billiards: [
      env: "billiards",
      hidden_sizes: [32, 16],
      archive: "grid:50x50",
      measures: "final:0,final:1",
      ranges: "-1..1,-1..1",
      qd_offset: -54.0,
      generations: 50,
      batch: 4800,
      sigma: 0.3,
      iso_sigma: 0.02
    ]
  ]

  # The preset whose networks have no environment.
  @xor "xor"
  # Switches that go with it.
  @with_xor [:preset, :out, :generations, :seed, :batch]

  @doc "The schema of all switches."
  def schema, do: @own ++ @before ++ @search

  @doc "The schema of one kind of switches: `:own`, `:before` or `:search`."
  def schema(:own), do: @own
  def schema(:before), do: @before
  def schema(:search), do: @search

  @doc "The names of the presets with their switches."
  def presets, do: @presets

  @doc "The options of switches, with those of the preset and the defaults."
  @spec complete!(keyword) :: keyword
  def complete!(given) do
    preset = preset!(given[:preset])
    defaults = for {name, spec} <- schema(), do: {name, spec[:default]}
    opts = defaults |> Keyword.merge(preset) |> Keyword.merge(given)
    Switches.needed!(opts, :env)
    opts
  end

  @doc "Whether the switches are those of XOR, which NEAT learns. Raises for others beside that preset."
  @spec xor?(keyword) :: boolean
  def xor?(given) do
    for {name, _value} <- given,
        given[:preset] == @xor and name not in @with_xor,
        do: raise(ArgumentError, "#{Switches.switch(name)} does not go with --preset xor")

    given[:preset] == @xor
  end

  defp preset!(nil), do: []

  defp preset!(name) do
    names = Map.new(@presets, fn {key, opts} -> {to_string(key), opts} end)
    Options.known!(name, [@xor | Map.keys(names)], "preset")
    names[name]
  end

  @doc "A new search of complete options. With `batch` it has another number of individuals."
  def search(opts, batch \\ nil) do
    env = env!(opts[:env])
    spec = Population.spec(env, hidden_sizes: opts[:hidden_sizes])
    measures = measures!(opts[:measures])
    own = Keyword.take(opts, Keyword.keys(@search))

    own =
      own ++
        [
          measures: measures,
          source: source!(opts),
          crossover: crossover!(opts[:crossover]),
          bounds: opts[:bounds] && range!(opts[:bounds], :bounds)
        ]

    own = Keyword.update!(own, :reward_weights, &weights!(&1, env))
    own = if batch, do: Keyword.replace!(own, :batch, batch), else: own

    with {:ok, archive} <- archive(opts, spec),
         do: Search.new(spec, env, [archive: archive] ++ own)
  end

  @doc """
  Rounds batch sizes up to those that the source of complete options can use. Emitters share a batch in equal parts, and
  the strategy of each needs at least two individuals.
  """
  @spec batches(keyword, [pos_integer]) :: [pos_integer]
  def batches(opts, sizes) do
    case source!(opts) do
      {_kind, count} -> Enum.uniq(for size <- sizes, do: count * max(ceil(size / count), 2))
      _other -> sizes
    end
  end

  defp env!(text) do
    names = Map.new(Env.names(), &{to_string(&1), &1})
    Options.known!(text, Map.keys(names), "environment")
    names[text]
  end

  defp archive(opts, spec) do
    case cells!(opts[:archive]) do
      nil ->
        {:ok, nil}

      {cells, distance} ->
        Archive.new(
          cells: cells,
          distance: distance,
          measures: distance && length(measures!(opts[:measures])),
          ranges: ranges!(opts[:ranges]),
          solution_size: Search.size(spec),
          learning_rate: opts[:archive_rate],
          threshold_min: opts[:threshold_min],
          qd_offset: opts[:qd_offset],
          seed: opts[:seed]
        )
    end
  end

  defp cells!("none"), do: nil

  defp cells!(text) do
    case String.split(text, ":") do
      ["grid", sizes] ->
        {{:grid, for(size <- String.split(sizes, "x"), do: positive!(Integer, size, text))}, nil}

      ["voronoi", count] ->
        {{:voronoi, positive!(Integer, count, text)}, nil}

      ["unstructured", most, distance] ->
        {{:unstructured, positive!(Integer, most, text)}, positive!(Float, distance, text)}

      _other ->
        bad!(:archive, text, @archives)
    end
  end

  defp positive!(type, text, whole) do
    case type.parse(text) do
      {number, ""} when number > 0 -> number
      _other -> bad!(:archive, whole, @archives)
    end
  end

  defp ranges!(nil), do: []
  defp ranges!(text), do: for(part <- String.split(text, ","), do: range!(part, :ranges))

  defp range!(text, name) do
    with [low, high] <- String.split(text, ".."),
         {low, ""} <- Float.parse(low),
         {high, ""} <- Float.parse(high) do
      {low, high}
    else
      _other -> bad!(name, text, "two numbers as in -1..1")
    end
  end

  defp measures!(nil), do: []
  defp measures!(text), do: for(part <- String.split(text, ","), do: measure!(part))

  defp measure!("length"), do: :length

  defp measure!(text) do
    with [kind, index] when kind in ["final", "observation", "input"] <- String.split(text, ":"),
         {index, ""} when index >= 0 <- Integer.parse(index) do
      {String.to_existing_atom(kind), index}
    else
      _other -> bad!(:measures, text, "final:N, observation:N, input:N or length")
    end
  end

  @strategies %{
    "cma_es" => :cma_es,
    "sep_cma_es" => :sep_cma_es,
    "snes" => :snes,
    "open_ai_es" => :open_ai_es
  }
  @emitters %{"cma_me" => :cma_me, "cma_mae" => :cma_mae}

  defp source!(opts) do
    text = opts[:source] || if(opts[:archive] == "none", do: "sep_cma_es", else: "elites")

    case String.split(text, ":") do
      ["elites"] ->
        :elites

      [name] when is_map_key(@strategies, name) ->
        @strategies[name]

      [name, count] when is_map_key(@emitters, name) ->
        case Integer.parse(count) do
          {count, ""} when count > 0 -> emitters!(@emitters[name], count, opts)
          _other -> bad!(:source, text, "a number of emitters, as in cma_me:5")
        end

      _other ->
        bad!(:source, text, "elites, cma_me:N, cma_mae:N, cma_es, sep_cma_es, snes or open_ai_es")
    end
  end

  # With a rate of 1 the threshold of a cell is the return of its elite, and the search is not CMA-MAE.
  defp emitters!(:cma_mae, count, opts) do
    (opts[:threshold_min] && opts[:archive_rate] < 1) ||
      raise ArgumentError,
            "--source cma_mae:#{count} needs --threshold-min and --archive-rate below 1"

    {:cma_mae, count}
  end

  defp emitters!(kind, count, _opts), do: {kind, count}

  defp crossover!(nil), do: nil
  defp crossover!("holographic"), do: :holographic

  defp crossover!(text) do
    with [kind, number] when kind in ["sbx", "uniform"] <- String.split(text, ":"),
         {number, ""} <- Float.parse(number) do
      {String.to_existing_atom(kind), number}
    else
      _other -> bad!(:crossover, text, "sbx:INDEX, uniform:RATE or holographic")
    end
  end

  defp weights!(nil, _env), do: []

  defp weights!(text, env) do
    {:ok, %{reward_terms: terms}} = Env.spec(env)

    for part <- String.split(text, ",") do
      with [term, number] <- String.split(part, "="),
           {weight, ""} <- Float.parse(number),
           true <- term in terms do
        # The world has this atom's text.
        {String.to_atom(term), weight}
      else
        _other -> bad!(:reward_weights, text, "term=number, of #{Enum.join(terms, ", ")}")
      end
    end
  end

  @spec bad!(atom, String.t(), String.t()) :: no_return
  defp bad!(name, text, expected) do
    raise ArgumentError,
          "#{Switches.switch(name)} cannot be #{inspect(text)}, expected #{expected}"
  end
end
