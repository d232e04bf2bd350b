defmodule Sconce.Compress.Shrink do
  @moduledoc false
  # Policies with fewer units, and means of policies: `Sconce.Compress.Policy`.

  alias Sconce.Compress.Catalogue
  alias Sconce.{Device, Native, Options, Policy}
  alias Sconce.Native.Call

  @sizes [:keep, :hidden_size, :hidden_sizes, :num_heads]

  @doc "The smaller policy, with validated options; see `Sconce.Compress.Policy.shrink/2`."
  def shrink(%Policy{device: device} = policy, opts, calibration) do
    given = for name <- @sizes, opts[name] != nil, do: name
    sizes!(given)
    shrinking = opts |> Keyword.take([:damping | @sizes]) |> Map.new()

    with {:ok, policy} <- Policy.to(policy, :cpu),
         start = &Native.policy_shrink(policy.ref, &1, shrinking, calibration),
         {:ok, {ref, layers}} <- Call.in_background(start),
         {:ok, own} <- Policy.wrap(ref, policy.device),
         {:ok, own} <- Policy.to(own, device) do
      {weights, before} = {own.num_weights, policy.num_weights}
      counts = %{weights: weights, weights_before: before, bytes: 4 * weights, before: 4 * before}
      {:ok, Map.merge(%{policy: own, layers: Enum.map(layers, &layer/1)}, counts)}
    end
  end

  @doc "See `Sconce.Compress.Policy.average/2`."
  def average([_ | _] = policies, opts) do
    weights = Catalogue.validate!(opts, :average)[:weights] || Enum.map(policies, fn _ -> 1.0 end)

    with {:ok, [first | _] = own} <- on_cpu(policies, []),
         refs = Enum.map(own, & &1.ref),
         start = &Native.policy_average(&1, refs, Enum.map(weights, fn w -> w / 1 end)),
         {:ok, ref} <- Call.run(start),
         {:ok, mean} <- Policy.wrap(ref, first.device),
         do: Policy.to(mean, hd(policies).device)
  end

  def average(other, _opts), do: Options.argument!("policies", other, "a list of policies")

  defp on_cpu([%Policy{device: %Device{}} = policy | rest], done) do
    with {:ok, own} <- Policy.to(policy, :cpu), do: on_cpu(rest, [own | done])
  end

  defp on_cpu([], done), do: {:ok, Enum.reverse(done)}
  defp on_cpu([other | _], _done), do: Options.argument!("policies", other, "a policy")
  defp on_cpu(other, _done), do: Options.argument!("policies", other, "a list of policies")

  defp layer(%{units: units, kept: kept} = layer),
    do: Map.put(layer, :removed, units - length(kept))

  defp sizes!([]), do: raise(ArgumentError, "shrink needs one of the options #{names(@sizes)}")

  defp sizes!(given) do
    with [_, _ | _] = widths <- given -- [:num_heads],
         do: raise(ArgumentError, "options #{names(widths)} exclude each other")
  end

  defp names(names), do: Enum.map_join(names, ", ", &inspect/1)
end
