defmodule Sconce.Action do
  alias Sconce.{Error, Game, Tensor}
  alias Sconce.Policy.{Head, Spec}

  @moduledoc """
  One controller input that `Sconce.Session.act/3` chose.

  | field | meaning |
  |---|---|
  | `buttons` | `%{a:, b:, x:, y:, z:, l:, r:, d_up:}`, true where pressed |
  | `main_stick`, `c_stick` | `%{x:, y:}` in 0..1, left and down 0, centre 0.5 |
  | `shoulder` | 0..1 |
  | `input` | in a declared game, the parts of the input by name: flags as a map, numbers in the game's range |
  | `confidence` | 0..1 for `buttons`, `main`, `c`, `shoulder`, and `overall` |
  | `choices` | the choice of each head, by the head's name in the Spec: a class, a list of bits, or a list of numbers; with `as: :nx` a tensor: u16 of `{}` or `{n}`, or f32 of `{n}` |
  | `logits` | nil, or with `logits: true` a list of numbers for each head, or a tensor f32 of `{n}`; see below |
  | `frame` | number of this decision in its session, from 1 |

  If the heads of a policy are not those of a controller, buttons, sticks and shoulder are nil, and
  `confidence` has one number for each head. If the heads are not those of a declared game, `input` is nil.

  The confidence of the buttons is the mean of `2 |p - 0.5|`. The confidence of a stick is the largest
  probability of an axis, averaged over both axes. `overall` weighs the four by 0.4, 0.3, 0.15 and 0.15.

  The logits of a Gaussian head are the means, then the logarithms of the standard deviations, both before
  tanh. A policy with a value head adds the entry `value` to `logits`.

  An action can be the `previous_action` of a `Sconce.Frame`.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [jump: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy)
      iex> {:ok, action} = Sconce.Session.act(session, [0.5, -0.5], deterministic: true)
      iex> {action.choices, action.frame, action.buttons}
      {%{jump: [1]}, 1, nil}
  """

  defstruct [
    :buttons,
    :main_stick,
    :c_stick,
    :shoulder,
    :input,
    :confidence,
    :choices,
    :logits,
    :frame
  ]

  @type buttons :: %{atom => boolean}
  @type stick :: %{x: float, y: float}
  @type t :: %__MODULE__{
          buttons: buttons | nil,
          main_stick: stick | nil,
          c_stick: stick | nil,
          shoulder: float | nil,
          input: map | nil,
          confidence: %{Spec.head_name() => float},
          choices: %{Spec.head_name() => non_neg_integer | [0 | 1] | [float] | struct},
          logits: %{Spec.head_name() => [float] | struct} | nil,
          frame: pos_integer
        }

  @doc false
  # Built from the answer of the native side: labels, one confidence for each head, logits, frame number.
  @spec new(Spec.t(), boolean, tuple) :: t
  def new(%Spec{heads: heads} = spec, true, {labels, confidence, logits, frame}),
    do: controller(heads, labels, confidence, logits && logits(spec, logits), frame)

  def new(%Spec{heads: heads} = spec, false, {labels, confidence, logits, frame}) do
    choices = choices(heads, labels)

    %__MODULE__{
      choices: choices,
      input: input(spec, choices),
      confidence: named(heads, confidence),
      logits: logits && logits(spec, logits),
      frame: frame
    }
  end

  @doc false
  # The same action with choices and logits as tensors.
  @spec tensors(t) :: t
  def tensors(%__MODULE__{choices: choices, logits: logits} = action),
    do: %{action | choices: all(choices), logits: logits && all(logits)}

  defp all(values), do: Map.new(values, fn {name, value} -> {name, tensor(value)} end)

  defp tensor(class) when is_integer(class),
    do: Tensor.from_binary(<<class::16-little>>, {:u, 16}, {})

  defp tensor([number | _] = numbers) when is_float(number) do
    data = for number <- numbers, into: <<>>, do: <<number::float-32-little>>
    Tensor.from_binary(data, {:f, 32}, {length(numbers)})
  end

  defp tensor(bits) do
    data = for bit <- bits, into: <<>>, do: <<bit::16-little>>
    Tensor.from_binary(data, {:u, 16}, {length(bits)})
  end

  defp input(%{embedding: {%Game{} = game, _options}, heads: heads} = spec, choices),
    do: if(Spec.reads_inputs?(spec), do: Game.Frame.chosen(game, heads, choices))

  defp input(_spec, _choices), do: nil

  defp choices(heads, labels) do
    {choices, []} =
      Enum.map_reduce(heads, labels, fn %{name: name, kind: kind}, labels ->
        {choice, rest} = Head.choice(kind, labels)
        {{name, choice}, rest}
      end)

    Map.new(choices)
  end

  defp logits(%Spec{heads: heads} = spec, logits) do
    {logits, rest} =
      Enum.map_reduce(heads, logits, fn %{name: name, kind: kind}, logits ->
        size = 4 * Head.logits(kind)
        <<own::binary-size(size), rest::binary>> = logits
        {{name, floats(own)}, rest}
      end)

    logits = Map.new(logits)
    if spec.value_head, do: Map.put(logits, :value, floats(rest)), else: logits
  end

  defp floats(binary), do: for(<<number::float-32-little <- binary>>, do: number)

  # This function runs 60 times a second for each player: one pattern match takes every label, without a loop.
  defp controller(heads, labels, confidence, logits, frame) do
    [a, b, x, y, z, l, r, d_up, main_x, main_y, c_x, c_y, shoulder] = labels

    [_, %{kind: {_, mx}}, %{kind: {_, my}}, %{kind: {_, cx}}, %{kind: {_, cy}}, %{kind: {_, s}}] =
      heads

    %__MODULE__{
      buttons: %{
        a: a == 1,
        b: b == 1,
        x: x == 1,
        y: y == 1,
        z: z == 1,
        l: l == 1,
        r: r == 1,
        d_up: d_up == 1
      },
      main_stick: %{x: main_x / (mx - 1), y: main_y / (my - 1)},
      c_stick: %{x: c_x / (cx - 1), y: c_y / (cy - 1)},
      shoulder: shoulder / (s - 1),
      confidence: confidence(confidence),
      choices: %{
        buttons: [a, b, x, y, z, l, r, d_up],
        main_x: main_x,
        main_y: main_y,
        c_x: c_x,
        c_y: c_y,
        shoulder: shoulder
      },
      logits: logits,
      frame: frame
    }
  end

  # The value of a value head comes last.
  defp confidence([buttons, main_x, main_y, c_x, c_y, shoulder | _value]) do
    main = (main_x + main_y) / 2
    c = (c_x + c_y) / 2

    %{
      buttons: rounded(buttons),
      main: rounded(main),
      c: rounded(c),
      shoulder: rounded(shoulder),
      overall: rounded(0.4 * buttons + 0.3 * main + 0.15 * c + 0.15 * shoulder)
    }
  end

  defp named(heads, confidence) do
    heads
    |> Enum.zip(confidence)
    |> Map.new(fn {%{name: name}, value} -> {name, rounded(value)} end)
  end

  # Rounds to three decimal places. `Float.round/2` takes ten times as long.
  defp rounded(value), do: round(value * 1000) / 1000

  @doc false
  # Labels in the order of the heads, from an action, from choices by name, or from a list of labels. The native
  # side checks the number and size of the labels. `what` names the labels in errors.
  @spec labels(Spec.t(), atom, t | map | list) :: {:ok, [non_neg_integer]} | {:error, Error.t()}
  def labels(spec, what, %__MODULE__{choices: choices}), do: labels(spec, what, choices)

  def labels(spec, what, choices) when length(choices) >= 0 do
    cond do
      choices != [] and Enum.all?(choices, &match?({_name, _choice}, &1)) ->
        labels(spec, what, Map.new(choices))

      Enum.all?(choices, &label?/1) ->
        {:ok, choices}

      numbers?(spec, choices) ->
        {:ok, Enum.map(choices, &(&1 * 1.0))}

      true ->
        misfit(what, choices)
    end
  end

  def labels(%Spec{heads: heads}, what, choices) when is_map(choices) do
    choices = if named?(heads, choices), do: choices, else: renamed(heads, choices)
    labels = Enum.flat_map(heads, &one_by_one(&1.kind, Map.get(choices, &1.name)))

    if named?(heads, choices) and map_size(choices) == length(heads) and
         Enum.all?(labels, &label?/1),
       do: {:ok, labels},
       else: misfit(what, choices)
  end

  def labels(_spec, what, other), do: misfit(what, other)

  # Integers below 0 or beyond 16 bits are valid only for a head that chooses numbers.
  defp numbers?(%Spec{heads: heads}, choices),
    do: Head.type(heads) == {:f, 32} and Enum.all?(choices, &is_number/1)

  defp named?(heads, choices), do: Enum.all?(heads, &is_map_key(choices, &1.name))

  # A name may be given as an atom or as text; the result has the form of the Spec.
  defp renamed(heads, choices) do
    names = Map.new(heads, &{Spec.text(&1.name), &1.name})

    for {name, choice} <- Map.to_list(choices),
        into: %{},
        do: {names[Spec.text(name)] || name, choice}
  end

  # An improper list is not a choice.
  defp one_by_one(kind, choice) when length(choice) >= 0, do: Head.labels_of(kind, choice)
  defp one_by_one(_kind, [_ | _] = other), do: [other]
  defp one_by_one(kind, choice), do: Head.labels_of(kind, choice)

  defp label?(label) when is_integer(label), do: label in 0..65_535
  defp label?(label), do: is_float(label) and abs(label) <= 3.4028234e38

  @doc false
  # Labels that mean "no action".
  @spec no_labels(Spec.t()) :: [65_535]
  def no_labels(%Spec{heads: heads}), do: Enum.flat_map(heads, &none/1)

  defp none(%{kind: kind}), do: List.duplicate(65_535, Head.labels(kind))

  defp misfit(what, got) do
    got = inspect(got, limit: 20, printable_limit: 200)
    details = %{what: to_string(what), expected: "an action or its choices", got: got}
    {:error, %Error{kind: :mismatch, op: :act, details: details}}
  end
end
