defmodule Sconce.Temporal do
  alias Sconce.Options
  alias Sconce.Temporal.Catalogue

  @backbones Catalogue.all()
  @forms Catalogue.forms()

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
  ## Forms of other programs

  `compat: :exphil` selects the formulas of ExPhil, so that its policies can be imported exactly. They differ from
  the formulas above; train new policies without this option.

  #{for {{name, program}, form} <- @forms do
    """
    ### `#{inspect(name)}, compat: #{inspect(program)}`

    ```text
    #{Enum.join(form.formula, "\n")}
    ```

    #{form.paper}. State: #{form.state}.#{Catalogue.needs(form.fits)}
    Taps: #{Enum.map_join(form.taps, ", ", &"`#{&1}`")}.

    #{Options.docs(form.options)}

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
  Returns the schema of a backbone's options, see `Sconce.Options`. `compat` is nil, or the program whose form of the
  backbone it is. Raises `ArgumentError` for an unknown backbone or form.

      iex> Sconce.Temporal.options(:gru)[:hidden_size][:default]
      256
      iex> Sconce.Temporal.options(:gro)
      ** (ArgumentError) unknown backbone :gro, did you mean :gru?

      iex> Sconce.Temporal.options(:gru, :exphil)
      ** (ArgumentError) the :gru backbone has no form compat: :exphil
  """
  @spec options(backbone, compat :: atom) :: Options.schema()
  def options(name, compat \\ nil), do: row!(name, compat).options

  @doc """
  Returns the names of the layer activations that `Sconce.Policy.forward/3` can return. `forward/3` puts the number of
  the layer before the name, as in `0.pre_conv`.

      iex> Sconce.Temporal.taps(:jamba)
      [:pre_conv, :post_conv, :ssm_out, :gate, :attention_weights]
  """
  @spec taps(backbone, compat :: atom) :: [atom]
  def taps(name, compat \\ nil), do: row!(name, compat).taps

  defp row!(name, nil) do
    known!(name)
    @backbones[name]
  end

  defp row!(name, compat) do
    known!(name)

    case List.keyfind(@forms, {name, compat}, 0) do
      {_form, row} ->
        row

      nil ->
        raise ArgumentError,
              "the #{inspect(name)} backbone has no form compat: #{Options.shown(compat)}"
    end
  end

  @doc false
  # The options of all backbones and forms.
  @spec schemas() :: [Options.schema()]
  def schemas, do: for({_name, row} <- @backbones ++ @forms, do: row.options)

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
    for {of, divisor} <- row!(name, options[:compat]).fits,
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
      put(name, backbone)
    end

    for {{name, program}, form} <- @forms do
      put("#{name} compat #{program}", form)
    end

    :ok
  end

  defp put(name, backbone) do
    IO.puts("#{name} (#{backbone.paper})")
    Enum.each(backbone.formula, &IO.puts("  " <> &1))
    IO.puts("  state    #{backbone.state}")
    for fit <- backbone.fits, do: IO.puts("  needs    #{Catalogue.fit(fit)}")
    IO.puts("  taps     #{Enum.join(backbone.taps, ", ")}")
    IO.puts("  options  " <> Enum.map_join(backbone.options, ", ", &default/1) <> "\n")
  end

  defp default({name, option}), do: "#{name} #{inspect(option[:default])}"
end
