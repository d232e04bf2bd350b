defmodule Sconce.CompressTest do
  use ExUnit.Case, async: true

  alias Sconce.{Compress, Error}

  doctest Compress

  defp map(rows) do
    data = for(row <- rows, v <- row, into: <<>>, do: <<v::float-32-little>>)
    %{data: data, shape: {length(rows), length(hd(rows))}, type: {:f, 32}}
  end

  # A matrix as a list; its numbers are those of 32 bits.
  defp weight(rows, cols),
    do: for(i <- 1..rows, do: for(j <- 1..cols, do: :math.sin(1.7 * i * i * j + 3.1 * j * j)))

  defp floats(binary), do: for(<<v::float-32-little <- binary>>, do: v)

  defp text({:error, %Error{} = error}), do: Exception.message(error)

  # Larger than what is computed on the caller's scheduler.
  defp large, do: map(weight(70, 100))

  describe "quantise" do
    test "gives codes, scales and zero points in the form and shape of the matrix" do
      rows = weight(4, 10)

      for {per, shape} <-
            [tensor: {}, row: {4}] ++ [{{:group, 3}, {4, 4}}, {{:group, 99}, {4, 1}}],
          zero_point <- [false, true] do
        opts = [bits: 5, per: per, zero_point: zero_point]
        {:ok, listed} = Compress.quantise(rows, opts)
        {:ok, mapped} = Compress.quantise(map(rows), opts)
        kind = if zero_point, do: :u, else: :s
        assert mapped.codes.type == {kind, 8} and mapped.codes.shape == {4, 10}
        assert mapped.scales.shape == shape
        assert List.flatten([listed.scales]) == floats(mapped.scales.data)
        assert mapped.zeros == nil or mapped.zeros.shape == shape
        assert mapped.zeros == nil == not zero_point

        assert Map.take(listed, [:bits, :per, :bytes, :error]) ==
                 Map.take(mapped, [:bits, :per, :bytes, :error])

        {:ok, back} = Compress.dequantise(listed)
        {:ok, same} = Compress.dequantise(mapped)
        assert List.flatten(back) == floats(same.data)
        assert same.shape == {4, 10}

        # The error is that of the numbers.
        square = fn values -> values |> Enum.map(&(&1 * &1)) |> Enum.sum() |> :math.sqrt() end
        flat = List.flatten(rows)
        away = flat |> Enum.zip(List.flatten(back)) |> Enum.map(fn {w, b} -> w - b end)
        assert_in_delta listed.error, square.(away) / square.(flat), 1.0e-6
      end
    end

    test "searches scales of either sign, with the code that has no counterpart" do
      rows = weight(8, 64)
      opts = [bits: 4, per: {:group, 32}]
      {:ok, largest} = Compress.quantise(rows, opts)
      {:ok, searched} = Compress.quantise(rows, opts ++ [scale: :search])
      assert searched.error < 0.96 * largest.error and searched.bytes == largest.bytes

      assert -8 in List.flatten(searched.codes) and
               Enum.any?(List.flatten(searched.scales), &(&1 < 0))

      {:ok, back} = Compress.dequantise(searched)
      groups = Enum.flat_map(searched.codes, &Enum.chunk_every(&1, 32))

      for {own, codes, scale} <-
            Enum.zip([
              Enum.flat_map(back, &Enum.chunk_every(&1, 32)),
              groups,
              List.flatten(searched.scales)
            ]),
          {w, code} <- Enum.zip(own, codes),
          do: assert_in_delta(w, scale * code, 1.0e-6)

      # Codes and scales of a search are refused on another grid.
      assert text(Compress.dequantise(%{searched | scale: :largest})) =~ "code: -8 is outside"

      zero = %{
        searched
        | scales: Enum.map(searched.scales, fn row -> Enum.map(row, &(&1 * 0)) end)
      }

      assert text(Compress.dequantise(zero)) =~ "scale: 0 is not above 0"
    end

    test "gives the same in both lanes" do
      large = large()
      {:ok, whole} = Compress.quantise(large, bits: 4)

      {:ok, row} =
        Compress.quantise(%{large | data: binary_part(large.data, 0, 400), shape: {1, 100}},
          bits: 4
        )

      assert binary_part(whole.codes.data, 0, 100) == row.codes.data
    end

    test "of zeros has scales of 1 and no error" do
      {:ok, quantised} = Compress.quantise([[0.0, 0.0]], zero_point: true)
      assert %{codes: [[0, 0]], scales: [1.0], zeros: [0], error: 0.0} = quantised
    end
  end

  describe "wrong matrices and options" do
    test "are errors that name them" do
      nan = %{
        data: <<1.0::float-32-little, 0x7FC00000::32-little>>,
        shape: {1, 2},
        type: {:f, 32}
      }

      for {weight, text} <- [
            {[], "quantise: weight: expected a matrix, got the shape {0}"},
            {[[]], "quantise: weight: expected a matrix with numbers, got [1, 0]"},
            {[1.0, 2.0], "quantise: weight: expected a matrix, got the shape {2}"},
            {[[1.0], [2.0, 3.0]],
             "quantise: weight: expected lists of equal lengths, got [[1.0], [2.0, 3.0]]"},
            {[[1.0], 2.0], "quantise: weight: expected lists of equal lengths, got [[1.0], 2.0]"},
            {[["a"]], ~s(quantise: weight: expected numbers of 32 bits, got [["a"]])},
            {[[1.0e300]], "quantise: weight: expected numbers of 32 bits, got [[1.0e300]]"},
            {nan, "quantise: weight is not finite (NaN)"},
            {%{nan | shape: {3, 1}},
             "quantise: weight: expected bytes of the shape {3, 1}, got 8 bytes"},
            {%{nan | shape: {-1, 2}},
             "quantise: weight: expected bytes of the shape {-1, 2}, got 8 bytes"},
            {%{nan | type: {:f, 64}},
             "quantise: weight: expected the type {:f, 32}, got {:f, 64}"}
          ] do
        assert text(Compress.quantise(weight)) == text
      end

      assert_raise ArgumentError, ~r/^weight: expected nested lists/, fn ->
        Compress.quantise(:w)
      end

      for opts <- [[bits: 1], [bits: 9], [per: {:group, 0}], [per: :column], [bit: 4]],
          do: assert_raise(ArgumentError, fn -> Compress.quantise([[1.0]], opts) end)
    end

    test "of codes are errors that name them" do
      {:ok, good} = Compress.quantise(weight(2, 6), bits: 4, per: {:group, 3})

      for {change, text} <- [
            {%{codes: [[9, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]}, "code: 9 is outside -7..7"},
            {%{codes: [[900]]}, "codes: expected numbers of 8 bits, got [[900]]"},
            {%{scales: [1.0]}, "scales: expected 4, got 1"},
            {%{scales: [[1.0, 1.0], [0.0, 1.0]]}, "scale: 0 is not above 0"},
            {%{order: [0, 0, 1, 2, 3, 4]}, "order: expected each of 6 columns once, got 0 twice"},
            {%{order: [0, 1]}, "order: expected each of 6 columns once, got 2 columns"}
          ] do
        assert text(Compress.dequantise(Map.merge(good, change))) == "dequantise: " <> text
      end

      assert_raise ArgumentError, ~r/^order: /, fn ->
        Compress.dequantise(%{good | order: [-1]})
      end
    end
  end

  describe "fake_quantise" do
    test "equals codes and back, for tensors of any rank" do
      rows = weight(4, 6)
      {:ok, quantised} = Compress.quantise(rows, bits: 4)
      {:ok, back} = Compress.dequantise(quantised)
      {:ok, rounded} = Compress.fake_quantise(rows, bits: 4)
      assert rounded.y == back
      assert rounded.step == quantised.scales
      assert rounded.zero == nil and rounded.numbers_gradient == nil
      {:ok, deep} = Compress.fake_quantise([Enum.take(rows, 2), Enum.drop(rows, 2)], bits: 4)
      assert deep.y == [Enum.take(back, 2), Enum.drop(back, 2)]
      {:ok, large} = Compress.fake_quantise(large(), bits: 4, gradient: large())
      assert large.y.shape == {70, 100}
      # The own range holds all numbers.
      assert large.numbers_gradient == large()
      # On a thread of its own.
      {:ok, larger} = Compress.quantise(map(weight(300, 400)))
      assert byte_size(larger.codes.data) == 120_000
    end

    test "learns steps and offsets" do
      numbers = [0.3, 1.2, -0.4, 5.0]
      opts = [bits: 4, per: :tensor, zero_point: true, learned: true, gradient: [1, 1, 1, 1]]
      {:ok, first} = Compress.fake_quantise(numbers, opts)
      assert is_float(first.step) and is_float(first.zero)
      {:ok, tight} = Compress.fake_quantise(numbers, opts ++ [step: 0.1, zero: -0.5])
      # The codes of -0.4 and 0.3 are inside of 0..15.
      assert tight.numbers_gradient == [1.0, 0.0, 1.0, 0.0]
      g = 1 / :math.sqrt(4 * 15)
      assert_in_delta tight.zero_gradient, 2 * g, 1.0e-6

      assert text(Compress.fake_quantise(numbers, opts ++ [step: 0.1])) =~
               "offset: expected one for each step"

      assert text(Compress.fake_quantise(numbers, bits: 4, step: [0.1, 0.2])) ==
               "fake_quantise: steps: expected 1, got 2"

      assert text(Compress.fake_quantise(numbers, step: [-1.0])) =~ "step: -1 is "

      # The count of numbers fits, and their places do not.
      assert text(Compress.fake_quantise([numbers, numbers], gradient: List.duplicate([1, 1], 4))) ==
               "fake_quantise: gradient: expected the shape {2, 4}, got {4, 2}"

      # Its gradient leaves the range of 32 bits.
      steep = [step: [0.001], learned: true, gradient: [[3.0e38, 3.0e38]]]
      assert {:error, %{kind: :non_finite}} = Compress.fake_quantise([[1.0, 1.0]], steep)
    end
  end

  describe "gptq" do
    test "compensates errors from inputs and from their Hessian alike" do
      weight = weight(6, 16)
      inputs = for t <- 1..60, do: for(j <- 1..16, do: :math.sin(t * j / 5) + :math.cos(t) * 2)

      hessian =
        for i <- 0..15 do
          for j <- 0..15 do
            2 * Enum.sum(for x <- inputs, do: Enum.at(x, i) * Enum.at(x, j)) / 60
          end
        end

      for order <- [:given, :diagonal] do
        opts = [bits: 4, per: {:group, 4}, order: order]
        {:ok, found} = Compress.gptq(weight, inputs, opts)
        {:ok, same} = Compress.gptq(map(weight), {:hessian, map(hessian)}, opts)
        assert found.output_error < 0.7 * found.nearest_output_error
        assert_in_delta same.output_error, found.output_error, 0.05 * found.output_error
        assert {:ok, found.weight} == Compress.dequantise(found)
        assert {:ok, same.weight} == Compress.dequantise(same)
        assert found.order == nil == (order == :given)
      end
    end

    test "takes one frame, and names calibrations that do not fit" do
      frame = for j <- 1..24, do: :math.cos(j)
      assert {:ok, found} = Compress.gptq(weight(3, 24), [frame], bits: 3)
      assert found.output_error < 0.5 * found.nearest_output_error
      weight = weight(3, 4)

      for {calibration, text} <- [
            {[[1.0, 2.0]], "calibration: expected inputs of width 4, got 2"},
            {{:hessian, [[1.0]]}, "calibration: expected inputs of width 4, got 1"},
            {[[0.0, 0.0, 0.0, 0.0]], "calibration: expected inputs that fire, got zeros"},
            {{:hessian, weight}, "hessian: expected [3, 3], got [3, 4]"},
            {[1.0], "calibration: expected a matrix, got the shape {1}"}
          ] do
        assert text(Compress.gptq(weight, calibration)) == "gptq: " <> text
      end
    end
  end

  describe "low_rank" do
    test "reaches ranks, energies and errors" do
      weight = map(weight(150, 140))
      {:ok, found} = Compress.low_rank(weight, rank: 5, method: :randomised)
      assert found.left.shape == {150, 5} and found.right.shape == {5, 140}
      {:ok, exact} = Compress.low_rank(weight, rank: 5, method: :exact)
      assert exact.error <= found.error and exact.singular_values.shape == {140}
      {:ok, by_energy} = Compress.low_rank(weight, energy: exact.energy - 1.0e-9, method: :exact)

      {:ok, by_error} =
        Compress.low_rank(weight, error: :math.sqrt(1 - exact.energy) + 1.0e-9, method: :exact)

      assert {by_energy.rank, by_error.rank} == {5, 5}
      assert {:ok, found} == Compress.low_rank(weight, rank: 5, method: :randomised)
    end

    test "needs one choice of the rank" do
      assert_raise ArgumentError, ~r/one of :rank, :energy and :error/, fn ->
        Compress.low_rank([[1.0]], [])
      end

      assert_raise ArgumentError, ~r/one of :rank/, fn ->
        Compress.low_rank([[1.0]], rank: 1, energy: 0.5)
      end

      assert text(Compress.low_rank([[1.0, 2.0]], rank: 2)) == "low_rank: rank: 2 is outside 1..1"
    end

    test "ends with its process" do
      weight = map(weight(400, 400))
      pid = spawn(fn -> Compress.low_rank(weight, rank: 300, method: :exact) end)
      Process.sleep(50)
      Process.exit(pid, :kill)
      # The library is free for others.
      assert {:ok, _found} = Compress.low_rank([[1.0, 2.0]], rank: 1)
    end
  end

  describe "pruning" do
    test "keeps the largest, in all forms" do
      rows = weight(4, 8)
      {:ok, pruned} = Compress.prune(rows, sparsity: 0.5, per: :row)
      assert Enum.map(pruned.mask, &Enum.sum/1) == [4, 4, 4, 4] and pruned.kept == 16
      {:ok, mapped} = Compress.prune(map(rows), sparsity: 0.5, per: :row)

      assert mapped.mask == %{
               data: pruned.mask |> List.flatten() |> :binary.list_to_bin(),
               shape: {4, 8},
               type: {:u, 8}
             }

      {:ok, half} = Compress.prune_two_four(map(rows))
      assert half.values.shape == {4, 4} and half.index.type == {:u, 8} and half.kept == 16
      {:ok, columns} = Compress.prune_structured(map(rows), sparsity: 0.25, axis: :columns)
      assert columns.weight.shape == {4, 6} and length(columns.kept) == 6

      assert text(Compress.prune_two_four([[1.0, 2.0]])) ==
               "prune: columns: expected a multiple of 4, got 2"

      assert text(Compress.prune_structured(rows, sparsity: 1.0)) ==
               "prune: sparsity: 1 is outside 0..0.75"
    end
  end

  describe "smooth and distillation_loss" do
    test "name what does not fit" do
      assert text(Compress.smooth([[1.0, 2.0]], [1.0])) ==
               "smooth: calibration: expected maxima of 2 inputs, got 1"

      student = [[0.1, 0.2], [0.3, 0.4]]
      loss = fn teachers, opts -> text(Compress.distillation_loss(student, teachers, opts)) end

      assert loss.(student, []) ==
               "distillation_loss: target: expected labels, because alpha is below 1, got none"

      assert loss.([[1.0]], alpha: 1) =~
               "logits of a teacher: expected the shape {2, 2}, got {1, 1}"

      assert loss.({:mean, []}, alpha: 1) =~ "teachers: expected logits of a teacher, got none"
      assert loss.(student, target: [0, 2]) == "distillation_loss: target: 2 is outside 0..1"
      assert loss.(student, target: [0, -1]) =~ "target: "
      assert loss.(student, target: [0]) == "distillation_loss: target: expected 2, got 1"
      assert loss.(student, target: [0.5, 1]) =~ "target: expected numbers of 64 bits"

      assert loss.(student, kind: :bernoulli, target: [[0, 1], [2, 0]]) =~
               "target: 2 is outside 0..1"
    end

    test "of a student that is its teacher is that of the labels" do
      student = map(weight(3, 5))
      opts = [target: [0, 4, 2], alpha: 0.25]
      {:ok, found} = Compress.distillation_loss(student, {:mean, [student, student]}, opts)
      assert_in_delta found.soft, 0.0, 1.0e-12
      assert_in_delta found.loss, 0.75 * found.hard, 1.0e-12
      assert found.gradient.shape == {3, 5}
      bits = [[true, false, true, false, true]]

      {:ok, found} =
        Compress.distillation_loss(weight(1, 5), weight(1, 5), kind: :bernoulli, target: bits)

      assert found.hard > 0 and match?([[_, _, _, _, _]], found.gradient)
      {:ok, large} = Compress.distillation_loss(large(), large(), alpha: 1)
      assert_in_delta large.loss, 0.0, 1.0e-12
    end
  end
end
