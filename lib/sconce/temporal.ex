defmodule Sconce.Temporal do
  alias Sconce.Options
  alias Sconce.Temporal.Catalogue

  @backbones Catalogue.all()

  @moduledoc """
  The backbones of a `Sconce.Policy.Spec`: networks that turn a sequence of vectors into memory.

  A backbone reads `[b, t, width]` and returns `[b, t, h]`, the trunk vector of every frame, and the
  state after the last frame. `h` is `:hidden_size`, or the last of `:hidden_sizes`. A sequence that is
  read frame by frame gives the same values as one that is read at once, and no formula depends on the
  length of the window. Attention computes its scores block by block, so the full score matrix is never
  in memory.

  In the formulas `norm` is a LayerNorm or an RMSNorm, with its own weights at each place. In residual
  formulas (`x = x + ...`), `x` starts as the input, projected to `h` if its width differs. One more norm
  follows the last layer, except in `:mamba`, `:mamba_2`, `:gated_ssm`, `:res_lstm` and `:tx_like`. "State"
  is the number of 32-bit floats for one game.

  #{for {name, backbone} <- @backbones do
    """
    ## `#{inspect(name)}`

    ```text
    #{Enum.join(backbone.formula, "\n")}
    ```

    #{backbone.paper}. State: #{backbone.state}.#{Catalogue.needs(backbone.fits)}
    Taps: #{Enum.map_join(backbone.taps, ", ", &"`#{&1}`")}.

    #{Options.docs(backbone.options)}

    """
  end}
  """

  @typedoc "One of `backbones/0`."
  @type backbone :: atom

  @doc """
  Returns the names of all backbones.

      iex> Enum.take(Sconce.Temporal.backbones(), 5)
      [:mlp, :lstm, :gru, :sliding_window, :mamba]
  """
  @spec backbones() :: [backbone]
  def backbones, do: unquote(Keyword.keys(@backbones))

  @doc """
  Returns the schema of a backbone's options, see `Sconce.Options`. Raises `ArgumentError` for an unknown backbone.

      iex> Sconce.Temporal.options(:gru)[:hidden_size][:default]
      256
      iex> Sconce.Temporal.options(:gro)
      ** (ArgumentError) unknown backbone :gro, did you mean :gru?
  """
  @spec options(backbone) :: Options.schema()
  def options(name) do
    known!(name)
    @backbones[name].options
  end

  @doc """
  Returns the names of the layer activations that `Sconce.Policy.forward/3` can return. `forward/3` puts the number of
  the layer before the name, as in `0.pre_conv`.

      iex> Sconce.Temporal.taps(:jamba)
      [:pre_conv, :post_conv, :ssm_out, :gate, :attention_weights]
  """
  @spec taps(backbone) :: [atom]
  def taps(name) do
    known!(name)
    @backbones[name].taps
  end

  defp known!(:decision_transformer) do
    raise ArgumentError,
          "unknown backbone :decision_transformer, did you mean :causal_transformer? It reads frames, " <>
            "without tokens for returns and actions"
  end

  defp known!(name), do: Options.known!(name, backbones(), "backbone")

  @doc false
  # Raises `ArgumentError` if options do not fit each other.
  @spec fits!(backbone, keyword) :: :ok
  def fits!(name, options) do
    for {of, divisor} <- @backbones[name].fits,
        rem(product(of, options), product(divisor, options)) != 0 do
      raise ArgumentError,
            "the #{inspect(name)} backbone needs #{valued(of, options)} to be a multiple of " <>
              valued(divisor, options)
    end

    :ok
  end

  defp product(factors, options), do: factors |> Enum.map(&factor(&1, options)) |> Enum.product()

  defp factor(number, _options) when is_integer(number), do: number
  defp factor(name, options), do: Keyword.fetch!(options, name)

  defp valued([number], _options) when is_integer(number), do: to_string(number)

  defp valued(factors, options),
    do: "#{Catalogue.product(factors)} (#{product(factors, options)})"

  @doc """
  Prints every backbone with its formula, its state, its taps, and its options with their defaults.

      iex> table = ExUnit.CaptureIO.capture_io(fn -> Sconce.Temporal.print() end)
      iex> table |> String.split("\\n") |> hd()
      "mlp (He et al. 2016 for the residual)"
  """
  @spec print() :: :ok
  def print do
    for {name, backbone} <- @backbones do
      IO.puts("#{name} (#{backbone.paper})")
      Enum.each(backbone.formula, &IO.puts("  " <> &1))
      IO.puts("  state    #{backbone.state}")
      for fit <- backbone.fits, do: IO.puts("  needs    #{Catalogue.fit(fit)}")
      IO.puts("  taps     #{Enum.join(backbone.taps, ", ")}")
      IO.puts("  options  " <> Enum.map_join(backbone.options, ", ", &default/1) <> "\n")
    end

    :ok
  end

  defp default({name, option}), do: "#{name} #{inspect(option[:default])}"
end
