defmodule Sconce.Monitor.Events do
  alias Sconce.Monitor.Catalogue
  alias Sconce.Monitor.Snapshot.{Histogram, Slot}

  @quantiles [p50: 0.5, p95: 0.95, p99: 0.99, p999: 0.999]
  # Samples with a low clock before it costs, and the load in percent from which it does.
  @throttled 5
  @loaded 50

  key = fn name ->
    name
    |> String.replace(~r/^sconce_((serving|leader|store|bot|device)_)?/, "")
    |> String.to_atom()
  end

  @keys Map.new(Catalogue.all() -- Catalogue.session(), fn %{name: name} -> {name, key.(name)} end)

  # Measurements of a metric: a histogram has several.
  measured = fn %{name: name, kind: kind} ->
    case kind do
      :histogram ->
        [:"#{key.(name)}_count" | for({q, _} <- @quantiles, do: :"#{key.(name)}_#{q}")]

      _number ->
        [key.(name)]
    end
  end

  @events [
    vm: {[], Catalogue.native() ++ Catalogue.sampled()},
    serving: {[:serving], Catalogue.serving()},
    leader: {[:leader, :leads], Catalogue.leader()},
    store: {[:store], Catalogue.store()},
    bot: {[:bot], Catalogue.bot()},
    device: {[:device], Catalogue.device()}
  ]

  @measurements Map.new(@events, fn {event, {_tags, metrics}} ->
                  {event, Enum.map(metrics, &{&1, measured.(&1)})}
                end)

  @moduledoc """
  The figures of `Sconce.Monitor` as `:telemetry` events, once a second, if the host has `:telemetry` and a handler is
  attached.

  | event | metadata | measurements |
  |---|---|---|
  | `[:sconce, :monitor, :vm]` | | all metrics of the catalogue of `Sconce.Monitor`, without `sconce_` |
  | `[:sconce, :monitor, :serving]` | `serving` | those of a serving, without `sconce_serving_` |
  | `[:sconce, :monitor, :leader]` | `leader`, `leads` | those of a member of a group, without `sconce_leader_` |
  | `[:sconce, :monitor, :store]` | `store` | those of a store, without `sconce_store_` |
  | `[:sconce, :monitor, :bot]` | `bot` | those of a bot, without `sconce_bot_` |
  | `[:sconce, :monitor, :device]` | `device` | those of a card, without `sconce_device_` |
  | `[:sconce, :monitor, :app]` | `name` with its labels | `value` of a counter or a gauge of the app; `count` and quantiles of a histogram |
  | `[:sconce, :monitor, :throttle]` | `device`, `reasons` as in `Sconce.GPU.throttling/1` | `throttled`: 1 when a card has run below its clocks for five seconds under load, 0 when that is over |

  Counters are sums since the start of the VM. A histogram has `NAME_count`, `NAME_p50`, `NAME_p95`, `NAME_p99` and
  `NAME_p999`, over the life of the VM; times are in nanoseconds. A value that the machine does not tell is left out.

      :telemetry.attach_many("metrics", Sconce.Monitor.Events.telemetry_names(), &MyApp.Metrics.handle/4, nil)

  With `telemetry_metrics` a reporter gets all of them from `definitions/0`:

      {Telemetry.Metrics.ConsoleReporter, metrics: Sconce.Monitor.Events.definitions()}

  The events of runs are those of `Sconce.Events`, and those of single servings `Sconce.Serving.Events`.
  """

  @doc """
  Returns the event names, for `:telemetry.attach_many/4`.

      iex> hd(Sconce.Monitor.Events.telemetry_names())
      [:sconce, :monitor, :vm]
  """
  @spec telemetry_names() :: [[atom]]
  def telemetry_names,
    do: for(name <- Keyword.keys(@events) ++ [:app, :throttle], do: name(name))

  defp name(event), do: [:sconce, :monitor, event]

  @doc """
  Returns a `Telemetry.Metrics.last_value/2` for each measurement of the catalogue, or an empty list if the host has no
  `telemetry_metrics`.

      iex> Sconce.Monitor.Events.definitions() == [] or Code.ensure_loaded?(Telemetry.Metrics)
      true
  """
  @spec definitions() :: [struct]
  def definitions do
    if Code.ensure_loaded?(Telemetry.Metrics) do
      for {event, {tags, _metrics}} <- @events,
          {%{doc: doc, unit: unit}, measurements} <- @measurements[event],
          measurement <- measurements do
        # The compiler does not see this call, so a host without `telemetry_metrics` gets no warning.
        apply(Telemetry.Metrics, :last_value, [
          name(event) ++ [measurement],
          [description: doc, tags: tags] ++ unit(measurement, unit)
        ])
      end
    else
      []
    end
  end

  defp unit(measurement, unit) do
    cond do
      unit == "" or String.ends_with?("#{measurement}", "_count") -> []
      unit == "ns" -> [unit: :nanosecond]
      unit == "bytes" -> [unit: :byte]
      true -> [unit: String.to_atom(unit)]
    end
  end

  @doc false
  # Whether someone listens. Without a listener the metrics are not read.
  @spec heard?() :: boolean
  def heard? do
    Code.ensure_loaded?(:telemetry) and
      apply(:telemetry, :list_handlers, [[:sconce, :monitor]]) != []
  rescue
    # `:telemetry` has not started.
    _not_started -> false
  end

  @doc false
  @spec tell([Slot.t()]) :: :ok
  def tell(slots) do
    slots
    |> Enum.filter(
      &(&1.kind in [:counter, :gauge, :histogram] and not Catalogue.session?(&1.name))
    )
    |> Enum.group_by(&kind(&1.name))
    |> Enum.each(&execute/1)
  end

  # The event of a metric, and its metadata.
  defp kind(name) do
    with {base, labels} when is_map_key(@keys, base) <- Slot.split(name),
         {event, {tags, _metrics}} <- Enum.find(@events, &of?(&1, labels)) do
      {event, for({tag, {_key, value}} <- Enum.zip(tags, labels), into: %{}, do: {tag, value})}
    else
      _app -> {:app, %{name: name}}
    end
  end

  # Labels are in the order of their names.
  defp of?({_event, {tags, _metrics}}, labels),
    do: Enum.map(tags, &Atom.to_string/1) == Enum.map(labels, &elem(&1, 0))

  defp execute({{:app, metadata}, slots}) do
    for slot <- slots, do: execute(:app, Map.new(values(slot, nil)), metadata)
  end

  defp execute({{event, metadata}, slots}) do
    measurements =
      for slot <- slots,
          key = @keys[slot.name |> String.split("{", parts: 2) |> hd()],
          pair <- values(slot, key),
          into: %{},
          do: pair

    execute(event, measurements, metadata)
  end

  defp values(%{value: nil}, _key), do: []

  defp values(%{value: %Histogram{} = histogram}, key) do
    count = {joined(key, :count), Histogram.count(histogram)}

    quantiles =
      for {name, share} <- @quantiles,
          value = Histogram.quantile(histogram, share),
          do: {joined(key, name), value}

    [count | quantiles]
  end

  defp values(%{value: value}, key), do: [{key || :value, value}]

  defp joined(nil, name), do: name
  # All are in `@measurements`.
  defp joined(key, name), do: String.to_existing_atom("#{key}_#{name}")

  defp execute(event, measurements, metadata) do
    if measurements != %{},
      do: apply(:telemetry, :execute, [name(event), measurements, metadata])

    :ok
  end

  @doc false
  # Follows the clocks of cards: `{reasons, load}` by device, and before that the numbers of samples with a reason.
  @spec throttled(%{String.t() => {[atom], number | nil}}, map) :: map
  def throttled(devices, counts) do
    Map.new(devices, fn {device, {reasons, load}} ->
      count = Map.get(counts, device, 0)

      next =
        cond do
          reasons == [] -> 0
          count >= @throttled or (load || 0) >= @loaded -> min(count + 1, @throttled)
          true -> count
        end

      if next == @throttled and count < @throttled, do: clocks(device, reasons, 1)
      if next == 0 and count == @throttled, do: clocks(device, [], 0)
      {device, next}
    end)
  end

  defp clocks(device, reasons, throttled) do
    if heard?(),
      do: execute(:throttle, %{throttled: throttled}, %{device: device, reasons: reasons})
  end
end
