defmodule Sconce.Policy.Spec.Native do
  @moduledoc false
  # A Spec as the native side has it.

  alias Sconce.{Embedding, Temporal}
  alias Sconce.Policy.{Head, Spec}
  alias Sconce.Temporal.Catalogue

  @doc "Returns a Spec as a map of the native side."
  @spec to(Spec.t()) :: map
  def to(%Spec{} = spec) do
    %{
      embedding: Embedding.to_native(spec.embedding),
      backbone: native_backbone(spec.backbone),
      critic: native_critic(spec),
      heads: %{
        kind: spec.heads_kind,
        parts: native_heads(spec),
        stream_size: spec.stream_size,
        prior: spec.prior
      }
    }
  end

  defp native_backbone({name, options}) do
    {compat, options} = Keyword.pop(options, :compat)
    {row, fixed} = Catalogue.row(name, compat)
    %{row => Map.new(options ++ fixed)}
  end

  defp native_critic(%{critic: :shared}), do: nil
  defp native_critic(%{critic: :separate, backbone: backbone}), do: native_backbone(backbone)
  defp native_critic(%{critic: backbone}), do: native_backbone(backbone)

  # The native side has the value head among the other heads.
  defp native_heads(%{heads: heads} = spec) do
    heads = for head <- heads, do: %{head | kind: Head.to_native(head.kind)}
    heads ++ value(spec)
  end

  defp value(%{value_head: true, heads: [%{hidden_size: size} | _]}),
    do: [%{name: :value, kind: {:value, 1}, hidden_size: size}]

  defp value(_spec), do: []

  @doc "Returns the Spec of a map of the native side."
  @spec from(map) :: Spec.t()
  def from(%{embedding: embedding, backbone: backbone, heads: heads} = native) do
    heads_of = Enum.map(heads.parts, &head_from_native/1)
    {values, choosing} = Enum.split_with(heads_of, &match?(%{kind: {:value, _n}}, &1))

    %Spec{
      embedding: Embedding.from_native(embedding),
      backbone: backbone_from_native(backbone),
      heads: choosing,
      heads_kind: if(heads.kind == "autoregressive", do: :autoregressive, else: :independent),
      stream_size: heads.stream_size,
      prior: heads.prior,
      value_head: values != [],
      critic: critic_from_native(native, backbone)
    }
  end

  defp critic_from_native(%{critic: %{} = critic}, backbone),
    do: Spec.separate(backbone_from_native(critic), backbone_from_native(backbone))

  defp critic_from_native(_native, _backbone), do: :shared

  defp backbone_from_native(backbone) do
    [{row, options}] = Map.to_list(backbone)
    {name, compat} = Catalogue.of_row(row, options)

    options =
      for {option, schema} <- Temporal.options(name, compat), do: option!(option, schema, options)

    {name, rounded(options)}
  end

  # The native side gives a choice as text, and omits newer options that have their default.
  defp option!(option, schema, options) do
    case {schema[:type], options} do
      {{:in, choices}, %{^option => text}} ->
        {option, Enum.find(choices, &(Atom.to_string(&1) == text))}

      {_type, %{^option => value}} ->
        {option, value}

      {_type, _omitted} ->
        {option, schema[:default]}
    end
  end

  # The native side has checked the form of the names, but the author of the file chose them: `Spec.local/1` makes no
  # atoms.
  defp head_from_native(%{name: name, kind: kind, hidden_size: size}) do
    %{name: Spec.local(name), kind: Head.from_native(kind), hidden_size: size}
  end

  @doc """
  Rounds the rates and constants of a backbone. The native side stores them as 32-bit floats, so they have only the
  digits that survive the round trip.
  """
  @spec rounded(keyword) :: keyword
  def rounded(options) do
    Enum.map(options, fn
      {:norm_eps, eps} when is_float(eps) -> {:norm_eps, significant(eps)}
      {name, rate} when is_float(rate) -> {name, Float.round(rate, 6)}
      other -> other
    end)
  end

  defp significant(number),
    do: number |> :erlang.float_to_binary(scientific: 5) |> String.to_float()
end
