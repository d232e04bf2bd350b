defmodule Sconce.HRRTest do
  use ExUnit.Case, async: true
  doctest Sconce.HRR

  alias Sconce.{Error, HRR}

  defp atoms(count, dimension, opts \\ []) do
    {:ok, atoms} = HRR.atoms(count, dimension, opts)
    atoms
  end

  defp numbers(batch) do
    {:ok, rows} = HRR.to_tensor(batch)
    rows
  end

  defp assert_near(one, other) do
    for {row, other} <- Enum.zip(one, other),
        {a, b} <- Enum.zip(row, other),
        do: assert_in_delta(a, b, 1.0e-5)
  end

  # Circular convolution by its definition.
  defp convolved(a, b) do
    size = length(a)

    for k <- 0..(size - 1) do
      for(j <- 0..(size - 1), do: Enum.at(a, j) * Enum.at(b, Integer.mod(k - j, size)))
      |> Enum.sum()
    end
  end

  test "binding is circular convolution, and unbinding is circular correlation" do
    a = [[1.0, 0.5, -1.0, 0.0, 2.0, 0.25, -0.5, 1.5, 0.75, -0.125]]
    b = [[0.5, 1.0, 0.0, -0.5, 0.25, 1.0, 0.125, -1.0, 0.5, 0.5]]
    {:ok, one} = HRR.from_tensor(a)
    {:ok, other} = HRR.from_tensor(b)
    {:ok, bound} = HRR.bind(one, other)
    assert bound.domain == :spectrum
    assert_near(numbers(bound), [convolved(hd(a), hd(b))])
    {:ok, back} = HRR.unbind(one, other)
    [first | rest] = hd(b)
    assert_near(numbers(back), [convolved(hd(a), [first | Enum.reverse(rest)])])
    {:ok, exact} = HRR.unbind(bound, other, exact: true)
    assert_near(numbers(exact), a)
  end

  test "unitary atoms share two numbers of the spectrum, so their cosines have a mean of 2 / dimension" do
    for {kind, dimension, mean} <- [
          {:unitary, 8, 0.25},
          {:unitary, 64, 0.03125},
          {:gaussian, 8, 0.0}
        ] do
      {:ok, cosines} =
        HRR.similarity(
          atoms(300, dimension, kind: kind),
          atoms(300, dimension, kind: kind, seed: 1)
        )

      cosines = List.flatten(cosines)
      count = length(cosines)
      found = Enum.sum(cosines) / count
      assert_in_delta found, mean, 0.01
      variance = Enum.sum(for cosine <- cosines, do: (cosine - found) ** 2) / count
      assert_in_delta :math.sqrt(variance) * :math.sqrt(dimension), 1, 0.15
    end

    # The sums of a vector and of its numbers with alternating signs are the first and the middle one.
    for row <- numbers(atoms(20, 16)) do
      assert_in_delta Enum.sum(row), 1, 1.0e-5
      odd = for {number, at} <- Enum.with_index(row), rem(at, 2) == 1, do: number
      assert_in_delta Enum.sum(row) - 2 * Enum.sum(odd), 1, 1.0e-5
    end
  end

  test "one key is bound to each vector of a batch" do
    {items, key} = {atoms(5, 64), atoms(1, 64, seed: 1)}
    {:ok, bound} = HRR.bind(items, key)
    {:ok, turned} = HRR.bind(key, items)
    assert bound.count == 5
    assert_near(numbers(bound), numbers(turned))
    {:ok, back} = HRR.unbind(bound, key)
    assert_near(numbers(back), numbers(items))
  end

  test "results do not depend on the domain of a batch" do
    batch = atoms(4, 100, kind: :gaussian)
    {:ok, time} = HRR.in_domain(batch, :time)
    assert {time.domain, batch.domain} == {:time, :spectrum}
    assert_near(numbers(time), numbers(batch))
    {:ok, one} = HRR.similarity(batch, batch)
    {:ok, other} = HRR.similarity(batch, time)
    assert_near(one, other)
    {:ok, one} = HRR.superpose([time, batch])
    {:ok, other} = HRR.superpose([time, time])
    assert {one.domain, other.domain} == {:spectrum, :time}
    assert_near(numbers(one), numbers(other))
  end

  test "records answer by memories of both widths" do
    {roles, words} = {atoms(8, 4096, seed: 1), atoms(500, 4096, seed: 2)}
    indices = [3, 77, 400, 12, 12, 255, 499, 0]
    {:ok, fillers} = HRR.take(words, indices)
    {:ok, pairs} = HRR.bind(roles, fillers)
    {:ok, record} = HRR.superpose(pairs)
    {:ok, noisy} = HRR.unbind(record, roles)
    {:ok, memory} = HRR.quantise(words)
    assert inspect(memory) == "#Sconce.HRR.Quantised<500 vectors of 4,096 · spectrum · int8>"
    {:ok, exact} = HRR.cleanup(noisy, words)
    {:ok, coded} = HRR.cleanup(noisy, memory)
    assert exact.indices == indices
    assert coded.indices == indices

    for {one, other} <- Enum.zip(exact.similarities, coded.similarities) do
      assert_in_delta one, other, 0.003
      assert_in_delta one, 1 / :math.sqrt(8), 0.1
    end
  end

  test "binaries are taken and given" do
    data = for i <- 1..16, into: <<>>, do: <<i::float-32-little>>
    {:ok, batch} = HRR.from_tensor(%{data: data, shape: {2, 8}, type: {:f, 32}}, as: :binaries)
    assert HRR.to_tensor(batch) == {:ok, %{data: data, shape: {2, 8}, type: {:f, 32}}}
    {:ok, cosines} = HRR.similarity(batch, batch)
    assert cosines.shape == {2, 2}
    {:ok, found} = HRR.cleanup(batch, batch)
    assert found.indices == %{data: <<0::32-little, 1::32-little>>, shape: {2}, type: {:u, 32}}
  end

  test "several processes use one batch at once" do
    batch = atoms(50, 1024)
    expected = HRR.similarity(batch, batch)

    tasks = for _process <- 1..8, do: Task.async(fn -> HRR.similarity(batch, batch) end)
    assert Enum.all?(Task.await_many(tasks), &(&1 == expected))
  end

  test "bad input names what is wrong" do
    nan = %{data: <<0::224, 0, 0, 0xC0, 0x7F>>, shape: {1, 8}, type: {:f, 32}}
    assert {:error, %Error{kind: :non_finite} = error} = HRR.from_tensor(nan)
    assert Exception.message(error) == "from_tensor: a number of vector 0 is not finite (NaN)"
    assert {:error, %Error{kind: :non_finite}} = HRR.project(nan, 16)
    assert {:error, %Error{kind: :mismatch}} = HRR.from_tensor([Enum.to_list(1..9)])
    assert {:error, %Error{kind: :out_of_range}} = HRR.from_tensor([])
    assert {:error, %Error{kind: :mismatch}} = HRR.from_tensor([[[1.0]]])
    assert {:error, %Error{kind: :mismatch}} = HRR.project([[1.0, 2.0]], 1000)
    assert {:error, %Error{kind: :out_of_range}} = HRR.project([], 64)
    assert {:error, %Error{kind: :mismatch}} = HRR.bind(atoms(2, 64), atoms(2, 32))
    assert {:error, %Error{kind: :mismatch}} = HRR.bind(atoms(2, 64), atoms(3, 64))
    assert {:error, %Error{kind: :mismatch}} = HRR.power(atoms(1, 64, kind: :gaussian), [2.0])
    assert {:error, %Error{kind: :out_of_range}} = HRR.take(atoms(2, 64), [])
    assert {:error, %Error{kind: :mismatch}} = HRR.superpose(atoms(3, 64), group: 2)
    assert {:error, %Error{kind: :mismatch}} = HRR.superpose(atoms(3, 64), weights: [1.0])
    assert {:error, %Error{kind: :out_of_memory}} = HRR.atoms(2 ** 31, 2 ** 24)
    assert_raise ArgumentError, ~r/count/, fn -> HRR.atoms(0, 64) end

    assert_raise ArgumentError, ~r/did you mean :unitary/, fn ->
      HRR.atoms(1, 64, kind: :unitar)
    end

    assert_raise ArgumentError, ~r/batches/, fn -> HRR.concat([]) end
  end

  test "a handle of another VM is not found" do
    foreign = %{atoms(1, 64) | ref: make_ref()}
    assert {:error, %Error{kind: :not_found} = error} = HRR.to_tensor(foreign)
    assert Exception.message(error) =~ "the handle is not of this VM"
    assert {:error, %Error{kind: :not_found}} = HRR.similarity(atoms(1, 64), foreign)
    assert inspect(%{foreign | count: nil}) == "#Sconce.HRR<>"
  end
end
