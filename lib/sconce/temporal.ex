defmodule Sconce.Temporal do
  alias Sconce.Options
  alias Sconce.Temporal.Catalogue

  @backbones Catalogue.all()

  @moduledoc """
  How vectors become memory: the backbones of a `Sconce.Policy.Spec`.

  Each reads `[b, t, width]` and gives `[b, t, h]`, the trunk vector of every frame, and the state
  after the last. Read at once or frame by frame, a sequence gives the same numbers, and no formula
  depends on the length of the window. Attention works its scores out block by block: they never
  stand in memory as a whole.

  `h` is `:hidden_size`, or the last of `:hidden_sizes`. In the formulas `norm` is a LayerNorm or an
  RMSNorm, each with weights of its own. Where `x` is added to, it begins as the input, projected if
  its width is another than `h`, and one more norm ends the stack, except of `:mamba`, `:mamba_2`,
  `:gated_ssm`, `:res_lstm` and `:tx_like`. A state is so many 32-bit numbers for one game.

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
  The backbones there are.

      iex> Enum.take(Sconce.Temporal.backbones(), 5)
      [:mlp, :lstm, :gru, :sliding_window, :mamba]
  """
  @spec backbones() :: [backbone]
  def backbones, do: unquote(Keyword.keys(@backbones))

  @doc """
  The schema of a backbone's options, see `Sconce.Options`. Raises `ArgumentError` for an unknown one.

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
  The activations of a backbone's layers that `Sconce.Policy.forward/3` gives by name, each behind the
  number of its layer.

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
            "without tokens of returns and actions"
  end

  defp known!(name), do: Options.known!(name, backbones(), "backbone")

  @doc false
  # Raises `ArgumentError` where options do not fit each other.
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
  Prints the backbones as a table: formula, state, options with their defaults.
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
