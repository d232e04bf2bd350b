defmodule Sconce.Trainer.Settings do
  @moduledoc false
  # Checks the options of `Sconce.Trainer` and converts them for the native side.

  alias Sconce.{Corpus, Device, Error, Loader, Native, Options, Policy, Preset, Pressure, Run}
  alias Sconce.Temporal
  alias Sconce.Game.Declaration
  alias Sconce.Policy.{Head, Spec}
  alias Sconce.Trainer.{Catalogue, Meant, Optimiser, OptionsFile, Table}

  @run Catalogue.schema(:run)
  @training Catalogue.schema(:training)
  @loss Catalogue.schema(:loss)

  defstruct [:source, :out, :options, :progress, :callback, :preset, :pressure]

  # Another attempt of a run takes these options and those that may change. The rest is recorded.
  @again ~w(corpus out progress callback pressure)a

  @doc """
  Returns the settings of a run. `source` is `{:ok, {folder of the corpus, spec}}`, or the error of a corpus that
  cannot be opened.
  """
  def new!(opts) do
    {preset, opts} = opts |> known!() |> with_file() |> preset()
    {spec, own} = Keyword.split(opts, Spec.options() -- [:window_size])
    if own[:resume] == true, do: on!(spec, own, preset), else: anew!(spec, own, preset)
  end

  # Given options override those of the file.
  defp with_file(opts) do
    case Keyword.pop(opts, :options) do
      {nil, opts} -> opts
      {path, opts} -> path |> OptionsFile.read!() |> known!() |> over(opts)
    end
  end

  defp over(said, opts) do
    {spec, said} = Keyword.pop(said, :spec)
    parts = Keyword.take(opts, Spec.options() -- [:window_size])

    opts =
      if spec && !opts[:spec],
        do: [spec: respecified(spec, nil, parts)] ++ (opts -- parts),
        else: opts

    Keyword.merge(said, opts, fn
      :loss, loss, own when is_list(loss) and is_list(own) -> Keyword.merge(loss, own)
      _name, _said, own -> own
    end)
  end

  defp anew!(spec, own, preset) do
    spec = spec ++ attention_window(spec, own)
    own = own |> Run.Settings.precision() |> Options.validate!(@run)
    Optimiser.check!(own)
    Meant.check!(own, @training)
    own |> begun(spec) |> settings(own, preset, @loss)
  end

  # A run that starts from a policy has the policy's Spec, unless a `:spec` is given.
  defp begun(own, spec) do
    case own[:policy] && own[:spec] == nil && Policy.load(own[:policy]) do
      {:ok, %Policy{spec: first}} -> {:ok, {folder(own[:corpus]), respecified(first, nil, spec)}}
      {:error, error} -> {:error, error}
      _none -> source(own[:corpus], own[:spec], spec)
    end
  end

  defp on!(spec, own, preset) do
    own = Options.validate!(own, Run.Settings.given(@run, [:out]))

    with {:ok, record} <- record(own[:out]),
         {:ok, corpus} <- corpus(own[:corpus] || record.corpus, own[:out]),
         {:ok, recorded} <- Run.Settings.spec(record.spec, own[:out], :train) do
      {:ok, {folder(corpus), respecified(recorded, own[:spec], spec)}}
    end
    |> settings(Keyword.put_new(own, :device, :as_before), preset, Run.Settings.given(@loss, []))
  end

  defp settings(source, own, preset, loss) do
    {source, device} = able(source, preset, own[:device])

    %__MODULE__{
      source: source,
      out: Path.expand(own[:out]),
      options: own |> Keyword.take(Keyword.keys(@training)) |> native(loss) |> Map.merge(device),
      progress: own[:progress],
      callback: own[:callback],
      preset: preset,
      pressure: Pressure.new(:train, own[:pressure] || [])
    }
  end

  @doc "Returns the options of another attempt of a run: from its saved state or anew, on its own device if `device` is nil."
  @spec again(keyword, boolean, Device.choice() | nil) :: keyword
  def again(opts, saved?, device),
    do: opts |> Table.flat() |> Run.Settings.again(@again ++ Table.free(), saved?, device)

  defp record(out) do
    mend = "start one with corpus: DIR and without resume: true"
    out |> Path.expand() |> Native.train_record() |> Run.Settings.record(mend)
  end

  defp corpus(nil, out) do
    what = "the corpus of the run in #{out}, whose run.json has no path for it,"
    mend = "give corpus: DIR"
    {:error, %Error{kind: :not_found, op: :train, details: %{what: what, mend: mend}}}
  end

  defp corpus(given, _out), do: {:ok, given}

  defp respecified(recorded, nil, []), do: recorded
  defp respecified(_recorded, %Spec{} = spec, []), do: spec

  defp respecified(recorded, nil, options) do
    own = Spec.to_options(recorded)
    # If the backbone or the heads are replaced, their recorded options are dropped.
    changed = for name <- [:backbone, :heads, :heads_kind], other?(own, options, name), do: name
    gone = Enum.flat_map(changed, &options_of(&1, own))
    own |> Keyword.drop(gone) |> Keyword.merge(options) |> Spec.new()
  end

  defp respecified(_recorded, spec, options) do
    {:ok, {_corpus, spec}} = source("", spec, options)
    spec
  end

  defp options_of(:backbone, own),
    do: Keyword.keys(Temporal.options(own[:backbone], own[:compat]))

  defp options_of(:heads_kind, _own), do: [:head_hidden_size, :stream_size]

  defp options_of(:heads, _own),
    do: [:heads_kind, :axis_buckets, :shoulder_buckets, :head_hidden_size, :stream_size]

  defp other?(own, options, name),
    do: Keyword.has_key?(options, name) and comparable(options[name]) != comparable(own[name])

  # Converts head names to one form, because they may be atoms or text.
  defp comparable(heads), do: if(Spec.named?(heads), do: Spec.named(heads), else: heads)

  @doc """
  Returns the settings of a measurement before a run: `{:ok, {folder of the corpus or nil, spec}}` or an error, the
  native options of the run, and the options of the measurement, whose schema is `name`.
  """
  def measured!(spec, opts, name) do
    {more, opts} = opts |> Table.flat() |> Keyword.split(Keyword.keys(Catalogue.schema(name)))

    {preset, opts} = opts |> known!() |> with_file() |> preset()
    {parts, own} = Keyword.split(opts, Spec.options() -- [:window_size])
    parts = parts ++ attention_window(parts, own)
    own = own |> Run.Settings.precision() |> Options.validate!(Catalogue.schema(:measured))
    Optimiser.check!(own)

    {source, device} =
      own[:corpus] |> known(spec || own[:spec], parts) |> able(preset, own[:device])

    options = own |> Keyword.take(Keyword.keys(@training)) |> native(@loss) |> Map.merge(device)
    {source, options, more |> Options.validate!(Catalogue.schema(name)) |> Map.new()}
  end

  @doc "Returns the options of an evaluation: `{folder of the training corpus, device, progress, native options}`."
  def evaluate!(opts) do
    {own, options} =
      opts
      |> Options.validate!(Catalogue.schema(:evaluate))
      |> Keyword.split([:train, :device, :progress])

    train = own[:train] && folder(own[:train])
    options = options |> Map.new() |> Map.update!(:reference, &(&1 && Path.expand(&1)))
    {train, own[:device], own[:progress], Run.Settings.threads(options)}
  end

  @doc "Returns the folder of a corpus, given as a struct or as a path."
  def folder(%Corpus{dir: dir}) when is_binary(dir), do: dir
  def folder(dir) when is_binary(dir), do: dir |> Options.path!() |> Path.expand()

  def folder(other), do: Options.argument!("corpus", other, "a Sconce.Corpus or a path")

  defp known!(opts) do
    opts = Table.flat(opts)
    names = Keyword.keys(@run) ++ Spec.options()
    for {name, _value} <- opts, do: Options.known!(name, names)
    opts
  end

  defp preset(opts) do
    case Keyword.pop(opts, :preset) do
      {nil, opts} ->
        {nil, opts}

      {name, opts} ->
        preset = name |> Preset.get() |> Preset.merge(opts) |> configured(opts)
        {preset, preset.options}
    end
  end

  # Settings override the preset where no option does.
  defp configured(%{options: options} = preset, given) do
    own = Keyword.drop(Run.Settings.over_preset(options), Keyword.keys(given))
    %{preset | options: Keyword.merge(options, own)}
  end

  # `await/2` returns the error of an unusable device, like that of a missing corpus. A resumed run keeps its device
  # unless another device is given.
  defp able({:ok, _} = source, nil, :as_before), do: {source, %{}}

  defp able({:ok, _} = source, preset, choice) do
    case if(preset, do: Preset.device(preset), else: Device.resolve_run(choice)) do
      {:ok, device} -> {source, %{device: to_string(device)}}
      error -> {error, %{}}
    end
  end

  defp able(error, _preset, _choice), do: {error, %{}}

  # Attention uses the window of training, unless the backbone has its own `:window_size`.
  defp attention_window(parts, own) do
    with window when window != nil <- own[:window_size],
         {name, opts} <- sized(parts[:backbone]),
         false <- Keyword.has_key?(opts, :window_size),
         schema = Temporal.options(name, parts[:compat] || opts[:compat]),
         true <- Keyword.has_key?(schema, :window_size) do
      [window_size: window]
    else
      _ -> []
    end
  end

  # Returns the name of a backbone, and its own `:window_size` if given.
  defp sized({name, opts}),
    do: if(Keyword.keyword?(opts), do: {name, Keyword.take(opts, [:window_size, :compat])})

  defp sized(name) when is_atom(name) and name != nil, do: {name, []}
  defp sized(_other), do: nil

  # A measurement may have no corpus.
  defp known(nil, nil, options), do: {:ok, {nil, Spec.new(options)}}

  defp known(nil, spec, options),
    do: with({:ok, {_here, spec}} <- source(".", spec, options), do: {:ok, {nil, spec}})

  defp known(corpus, spec, options), do: source(corpus, spec, options)

  defp source(corpus, %Spec{} = spec, []), do: {:ok, {folder(corpus), Spec.new(spec)}}

  defp source(_corpus, %Spec{}, [{name, _value} | _]) do
    raise ArgumentError,
          "option #{inspect(name)} belongs to the Spec, which :spec gives as a whole"
  end

  defp source(corpus, nil, options) do
    with {:ok, %Corpus{handle: handle} = opened} <- open(corpus),
         {:ok, %{schema: schema}} <- Native.corpus_info(handle) do
      own = own(schema, options[:embedding] || Corpus.embedding(opened))
      {:ok, {folder(corpus), own |> Keyword.merge(options) |> Spec.new()}}
    end
  end

  defp source(_corpus, other, _options) do
    raise ArgumentError, "option :spec: expected a Sconce.Policy.Spec, got: #{inspect(other)}"
  end

  defp open(%Corpus{} = corpus), do: {:ok, corpus}
  defp open(dir), do: dir |> folder() |> Corpus.open()

  # Returns the embedding and the heads of the corpus. Vectors may be frames of Melee that are embedded already; their
  # labels are those of a controller.
  defp own(%{name: "vector"}, {:melee, _options} = melee), do: [embedding: melee]

  defp own(%{name: "vector", size: size, heads: heads}, _vector) do
    heads = for [name, kind] <- heads, do: {name, Head.from_native(kind)}

    [embedding: {:vector, size}, heads: heads]
  end

  defp own(%{name: name, game: game}, _embedding) when name in ["game", "relabelled"],
    do: [embedding: Declaration.from_native(game)]

  defp own(_melee, _embedding), do: []

  defp native(options, loss) do
    options
    |> Map.new()
    |> Loader.native_sampling()
    |> Run.Settings.threads()
    |> Map.replace_lazy(:loss, &loss(&1, loss))
    |> Map.replace_lazy(:validation, &(&1 && folder(&1)))
    |> Run.Settings.teacher()
    |> Map.replace_lazy(:policy, &(&1 && Path.expand(&1)))
    |> Map.replace_lazy(:freeze, &(&1 || []))
    |> Map.replace_lazy(:mix, fn mix -> Enum.map(mix || [], &mixed!/1) end)
  end

  defp mixed!({corpus, share}), do: mixed!({corpus, share, nil})

  defp mixed!({corpus, share, to}), do: %{corpus: folder(corpus), share: share, to: to}

  # `run.json` has a mix as a map.
  defp mixed!(%{corpus: corpus, share: share} = mix), do: mixed!({corpus, share, mix[:to]})

  defp mixed!(text) when is_binary(text) do
    case Regex.run(~r/\A(.+)=([0-9.e-]+?)(?:\.\.([0-9.e-]+))?\z/, text) do
      [_, corpus, share] -> mixed!({corpus, share!(share, text)})
      [_, corpus, share, to] -> mixed!({corpus, share!(share, text), share!(to, text)})
      nil -> unmixed!(text)
    end
  end

  defp mixed!(other), do: unmixed!(other)

  defp share!(share, text) do
    case Float.parse(share) do
      {share, ""} -> share
      _other -> unmixed!(text)
    end
  end

  @spec unmixed!(term) :: no_return
  defp unmixed!(other) do
    raise ArgumentError,
          "option :mix: expected {folder, share}, {folder, first, last} or \"folder=share\", " <>
            "got: #{inspect(other)}"
  end

  defp loss(:plain, _schema), do: Catalogue.plain()

  defp loss(options, schema) do
    options
    |> Options.validate!(schema)
    |> Map.new()
    |> Map.replace_lazy(:pos_weight, &pos_weight/1)
  end

  defp pos_weight(nil), do: "none"
  defp pos_weight(weights) when is_list(weights), do: {:given, weights}
  defp pos_weight(:auto), do: "auto"
end
