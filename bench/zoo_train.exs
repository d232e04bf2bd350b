# Trains three networks of `Sconce.Zoo` on generated examples:
#
#     mix run zoo_train.exs                                    # a few minutes on two cores
#     mix run zoo_train.exs --out nets                         # keeps the networks as nets/NAME.safetensors
#     mix run zoo_train.exs --python python3 | tee zoo_train.txt
#
# `keyword_spot` hears 12 words of two tones or chirps in noise. `anomaly_detect` learns to repeat the vibration of a sound
# machine; the error of a window is its score. `gesture_net` reads digits of the fonts of the system, rendered by
# `peers/digits.py` with Pillow; without `--python` the digits are those of a font of 5x7 pixels.
#
# With `--python` PyTorch trains the same network from the same initial weights (`peers/fit.py`): 100 steps over the same
# batches, whose losses are compared, and then a whole run of as many epochs in an order of its own.

defmodule ZooTrain do
  alias Sconce.Bench.{Examples, Machine, Output}
  alias Sconce.{Net, Zoo}

  @switches [out: :string, python: :string, only: :string]
  # name, examples for training and for the test, options
  @runs [
    {:keyword_spot, 1200, 480, [epochs: 12, learning_rate: 2.0e-3, batch_size: 32]},
    {:anomaly_detect, 4000, 2000,
     [epochs: 30, learning_rate: 3.0e-3, batch_size: 64, loss: :squared]},
    {:gesture_net, 2000, 600, [epochs: 6, learning_rate: 3.0e-3, batch_size: 32]}
  ]

  def run(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    {commit, 0} = System.cmd("git", ["rev-parse", "--short", "HEAD"])

    IO.puts(
      "mix run zoo_train.exs #{Enum.join(args, " ")}, in bench/ (commit #{String.trim(commit)})\n"
    )

    IO.puts(Output.header(Machine.describe()))
    folder = Path.join(System.tmp_dir!(), "sconce-zoo-train-#{System.pid()}")
    File.mkdir_p!(folder)

    for {name, train, test, options} <- @runs,
        opts[:only] in [nil, to_string(name)],
        do: train(name, {train, test}, options, folder, opts)

    File.rm_rf!(folder)
  end

  defp train(name, counts, options, folder, opts) do
    {train, test, source} = data(name, counts, folder, opts)
    {:ok, net} = Zoo.init(name, seed: 1)
    options = options ++ [lr_schedule: :cosine]
    {:ok, trained, report} = Net.fit(net, elem(train, 0), targets(name, train), options)
    score = score(name, trained, test)

    print(
      name,
      "Sconce",
      "#{source}; #{elem(counts, 0)} examples, #{report.epochs} epochs, #{Float.round(report.seconds, 1)} s",
      score
    )

    if opts[:out], do: save(trained, opts[:out], name)
    if opts[:python], do: peer(name, net, {train, test}, options, folder, opts[:python])
    IO.puts("")
  end

  defp data(:keyword_spot, {train, test}, _folder, _opts),
    do: {Examples.keywords(train, 1), Examples.keywords(test, 2), "synthesised words"}

  defp data(:anomaly_detect, {train, test}, _folder, _opts),
    do:
      {Examples.vibrations(train, 1, 0.0), Examples.vibrations(test, 2, 0.5),
       "generated vibration"}

  defp data(:gesture_net, {train, test}, folder, opts) do
    if python = opts[:python] do
      [train, test] =
        for {count, seed} <- [{train, 1}, {test, 2}], do: rendered(python, folder, count, seed)

      {train, test, "digits of system fonts, half of them only in the test"}
    else
      {Examples.digits(train, 1), Examples.digits(test, 2), "digits of a font of 5x7 pixels"}
    end
  end

  defp rendered(python, folder, count, seed) do
    path = Path.join(folder, "digits#{seed}")
    {fonts, 0} = System.cmd(python, ["peers/digits.py", path, to_string(count), to_string(seed)])
    if seed == 1, do: IO.write(fonts)
    classes = for <<class::32-little <- File.read!(path <> ".classes")>>, do: class
    {File.read!(path <> ".images"), classes}
  end

  defp targets(:anomaly_detect, _examples), do: :inputs
  defp targets(_name, {_inputs, classes}), do: Examples.classes(classes)

  defp score(:anomaly_detect, net, {inputs, flags}) do
    errors =
      for <<window::binary-size(640) <- inputs>> do
        {:ok, again} = Net.run(net, window)
        Enum.zip_with(floats(window), floats(again), &((&1 - &2) * (&1 - &2))) |> Enum.sum()
      end

    {"AUC", Examples.auc(errors, flags)}
  end

  defp score(_name, net, {inputs, classes}) do
    {:ok, found} = Net.evaluate(net, inputs, Examples.classes(classes))
    {"accuracy", found.accuracy}
  end

  defp floats(data), do: for(<<v::float-32-little <- data>>, do: v)

  defp print(name, who, what, {kind, score}),
    do:
      IO.puts(
        "#{name}, #{who}: #{kind} #{:erlang.float_to_binary(score / 1, decimals: 4)} (#{what})"
      )

  defp save(net, out, name) do
    File.mkdir_p!(out)
    path = Path.join(out, "#{name}.safetensors")
    :ok = Net.save(net, path)
    IO.puts("#{path}: #{File.stat!(path).size} bytes")
  end

  # The losses of 100 steps over batches in the order of the examples, and a whole run of PyTorch.
  defp peer(name, net, {train, test}, options, folder, python) do
    path = Path.join(folder, to_string(name))
    :ok = Net.save(net, path <> ".safetensors")

    for {part, {inputs, targets}} <- [train: train, test: test] do
      File.write!("#{path}.#{part}.inputs", inputs)
      File.write!("#{path}.#{part}.targets", Examples.classes(targets))
    end

    steps =
      options
      |> Keyword.drop([:epochs, :lr_schedule])
      |> Keyword.merge(steps: 100, shuffle: false)

    {:ok, _net, ours} = Net.fit(net, elem(train, 0), targets(name, train), steps)
    loss = options[:loss] || :cross_entropy
    arguments = [path, loss, options[:learning_rate], options[:batch_size], options[:epochs]]
    {text, 0} = System.cmd(python, ["peers/fit.py" | Enum.map(arguments, &to_string/1)])

    [losses, [score, seconds]] =
      for line <- String.split(text, "\n", trim: true),
          do: line |> String.split() |> Enum.map(&String.to_float/1)

    print(
      name,
      "PyTorch",
      "#{Float.round(seconds, 1)} s",
      {if(loss == :squared, do: "AUC", else: "accuracy"), score}
    )

    apart = Enum.zip_with(ours.losses, losses, &(abs(&1 - &2) / max(abs(&2), 1.0e-12)))
    scale = losses |> Enum.map(&abs/1) |> Enum.max()
    absolute = Enum.zip_with(ours.losses, losses, &abs(&1 - &2)) |> Enum.max()

    IO.puts(
      "losses of 100 steps: #{first_last(ours.losses)} and in PyTorch #{first_last(losses)}; " <>
        "largest difference #{figure(absolute)} (#{figure(absolute / scale)} of the largest loss), of a single loss #{figure(Enum.max(apart))}"
    )
  end

  defp first_last(losses), do: "#{figure(hd(losses))} .. #{figure(List.last(losses))}"

  defp figure(number),
    do:
      :erlang.float_to_binary(number / 1, [:short])
      |> String.to_float()
      |> then(&:io_lib.format("~.4g", [&1]))
      |> to_string()
end

ZooTrain.run(System.argv())
