defmodule Sconce.Policy.Spec.Summary do
  @moduledoc false
  # A Spec in one line: `vector 2 -> gru 256x2 -> action(2)`.

  alias Sconce.{Net, Temporal, Text}
  alias Sconce.Policy.{Head, Spec}

  @doc "Returns the line. `width` is the width of the embedded vector as text, or empty if it is unknown."
  @spec line(Spec.t(), String.t()) :: String.t()
  def line(spec, width) do
    embedding = embedding(spec.embedding, width)
    parts = [embedding, backbone(spec.backbone), heads(spec)]
    parts |> Enum.join(" -> ") |> Text.printable()
  end

  @doc "Returns the part of a backbone."
  @spec backbone({Temporal.backbone(), keyword}) :: String.t()
  def backbone({:mlp, options}) do
    activation = options[:activation] || :relu
    name = if activation == :relu, do: "mlp", else: "mlp #{activation}"
    "#{name} #{Enum.join(options[:hidden_sizes], "-")}"
  end

  def backbone({name, o}) do
    form = if o[:compat], do: " #{o[:compat]}"
    "#{name}#{form} #{o[:hidden_size]}x#{o[:num_layers]}"
  end

  defp embedding({:vector, n}, _width), do: "vector #{n}"

  defp embedding({:normalised, own}, _width), do: "vector #{length(own[:mean])} normalised"
  defp embedding({:net, spec}, width), do: "net #{Net.Spec.shapes(spec)}#{width}"
  defp embedding({:melee, [layout: :packed]}, _width), do: "melee packed 288"

  defp embedding({:melee, [{:layout, :packed} | _] = o}, width),
    do: "melee packed#{width}#{blind(o)}"

  defp embedding({:melee, options}, width), do: "melee#{width}#{blind(options)}"

  defp embedding({game, options}, width) do
    packed = if options[:layout] == :packed, do: " packed", else: ""
    "#{game.name}#{packed}#{width}"
  end

  defp blind(options),
    do: if(options[:previous_action] == false, do: " without previous action", else: "")

  defp heads(%{heads: heads, heads_kind: kind} = spec) do
    text =
      if Spec.controller?(spec),
        do: "controller(#{heads |> Enum.map(&logits/1) |> Enum.sum()})",
        else: Enum.map_join(heads, " ", &"#{&1.name}(#{logits(&1)})")

    text = text <> value(spec)
    if kind == :autoregressive, do: "autoregressive " <> text, else: text
  end

  defp value(%{value_head: false}), do: ""
  defp value(%{critic: :shared}), do: " value"
  defp value(%{critic: :separate}), do: " value of its own trunk"
  defp value(%{critic: critic}), do: " value of its own #{backbone(critic)}"

  defp logits(%{kind: kind}), do: Head.logits(kind)
end
