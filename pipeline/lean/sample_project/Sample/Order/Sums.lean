/-! # Sums over ranges, and a proof that is too long for a row -/

namespace Sample.Sums

/-- The sum of `f 0, …, f (n - 1)`. -/
def total (f : Nat → Nat) : Nat → Nat
  | 0 => 0
  | n + 1 => total f n + f n

@[simp] theorem total_zero (f : Nat → Nat) : total f 0 = 0 := rfl

theorem total_succ (f : Nat → Nat) (n : Nat) : total f (n + 1) = total f n + f n := rfl

theorem total_add (f g : Nat → Nat) (n : Nat) :
    total (fun i => f i + g i) n = total f n + total g n := by
  induction n with
  | zero => rfl
  | succ n ih => rw [total_succ, total_succ, total_succ, ih]; omega

theorem total_const (c n : Nat) : total (fun _ => c) n = n * c := by
  induction n with
  | zero => simp
  | succ n ih => rw [total_succ, ih, Nat.succ_mul]

theorem total_mono {f g : Nat → Nat} (h : ∀ i, f i ≤ g i) (n : Nat) : total f n ≤ total g n := by
  induction n with
  | zero => exact Nat.le_refl 0
  | succ n ih =>
    rw [total_succ, total_succ]
    exact Nat.add_le_add ih (h n)

/-- Deliberately slow: one step at a time. -/
theorem long_way (n : Nat) : n ≤ n + 40 := by
  have step0 : n ≤ n := Nat.le_refl n
  have step1 : n ≤ n + 1 := Nat.le_trans step0 (by omega)
  have step2 : n ≤ n + 2 := Nat.le_trans step1 (by omega)
  have step3 : n ≤ n + 3 := Nat.le_trans step2 (by omega)
  have step4 : n ≤ n + 4 := Nat.le_trans step3 (by omega)
  have step5 : n ≤ n + 5 := Nat.le_trans step4 (by omega)
  have step6 : n ≤ n + 6 := Nat.le_trans step5 (by omega)
  have step7 : n ≤ n + 7 := Nat.le_trans step6 (by omega)
  have step8 : n ≤ n + 8 := Nat.le_trans step7 (by omega)
  have step9 : n ≤ n + 9 := Nat.le_trans step8 (by omega)
  have step10 : n ≤ n + 10 := Nat.le_trans step9 (by omega)
  have step11 : n ≤ n + 11 := Nat.le_trans step10 (by omega)
  have step12 : n ≤ n + 12 := Nat.le_trans step11 (by omega)
  have step13 : n ≤ n + 13 := Nat.le_trans step12 (by omega)
  have step14 : n ≤ n + 14 := Nat.le_trans step13 (by omega)
  have step15 : n ≤ n + 15 := Nat.le_trans step14 (by omega)
  have step16 : n ≤ n + 16 := Nat.le_trans step15 (by omega)
  have step17 : n ≤ n + 17 := Nat.le_trans step16 (by omega)
  have step18 : n ≤ n + 18 := Nat.le_trans step17 (by omega)
  have step19 : n ≤ n + 19 := Nat.le_trans step18 (by omega)
  have step20 : n ≤ n + 20 := Nat.le_trans step19 (by omega)
  have step21 : n ≤ n + 21 := Nat.le_trans step20 (by omega)
  have step22 : n ≤ n + 22 := Nat.le_trans step21 (by omega)
  have step23 : n ≤ n + 23 := Nat.le_trans step22 (by omega)
  have step24 : n ≤ n + 24 := Nat.le_trans step23 (by omega)
  have step25 : n ≤ n + 25 := Nat.le_trans step24 (by omega)
  have step26 : n ≤ n + 26 := Nat.le_trans step25 (by omega)
  have step27 : n ≤ n + 27 := Nat.le_trans step26 (by omega)
  have step28 : n ≤ n + 28 := Nat.le_trans step27 (by omega)
  have step29 : n ≤ n + 29 := Nat.le_trans step28 (by omega)
  have step30 : n ≤ n + 30 := Nat.le_trans step29 (by omega)
  have step31 : n ≤ n + 31 := Nat.le_trans step30 (by omega)
  have step32 : n ≤ n + 32 := Nat.le_trans step31 (by omega)
  have step33 : n ≤ n + 33 := Nat.le_trans step32 (by omega)
  have step34 : n ≤ n + 34 := Nat.le_trans step33 (by omega)
  have step35 : n ≤ n + 35 := Nat.le_trans step34 (by omega)
  have step36 : n ≤ n + 36 := Nat.le_trans step35 (by omega)
  have step37 : n ≤ n + 37 := Nat.le_trans step36 (by omega)
  have step38 : n ≤ n + 38 := Nat.le_trans step37 (by omega)
  have step39 : n ≤ n + 39 := Nat.le_trans step38 (by omega)
  have step40 : n ≤ n + 40 := Nat.le_trans step39 (by omega)
  exact step40

theorem add_2_pos (n : Nat) : 0 < n + 2 := by omega

theorem lt_add_2 (n : Nat) : n < n + 2 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 2)

theorem add_3_pos (n : Nat) : 0 < n + 3 := by omega

theorem lt_add_3 (n : Nat) : n < n + 3 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 3)

theorem add_4_pos (n : Nat) : 0 < n + 4 := by omega

theorem lt_add_4 (n : Nat) : n < n + 4 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 4)

theorem add_5_pos (n : Nat) : 0 < n + 5 := by omega

theorem lt_add_5 (n : Nat) : n < n + 5 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 5)

theorem add_6_pos (n : Nat) : 0 < n + 6 := by omega

theorem lt_add_6 (n : Nat) : n < n + 6 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 6)

theorem add_7_pos (n : Nat) : 0 < n + 7 := by omega

theorem lt_add_7 (n : Nat) : n < n + 7 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 7)

theorem add_8_pos (n : Nat) : 0 < n + 8 := by omega

theorem lt_add_8 (n : Nat) : n < n + 8 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 8)

theorem add_9_pos (n : Nat) : 0 < n + 9 := by omega

theorem lt_add_9 (n : Nat) : n < n + 9 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 9)

theorem add_10_pos (n : Nat) : 0 < n + 10 := by omega

theorem lt_add_10 (n : Nat) : n < n + 10 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 10)

theorem add_11_pos (n : Nat) : 0 < n + 11 := by omega

theorem lt_add_11 (n : Nat) : n < n + 11 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 11)

theorem add_12_pos (n : Nat) : 0 < n + 12 := by omega

theorem lt_add_12 (n : Nat) : n < n + 12 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 12)

theorem add_13_pos (n : Nat) : 0 < n + 13 := by omega

theorem lt_add_13 (n : Nat) : n < n + 13 :=
  Nat.lt_add_of_pos_right (by decide : 0 < 13)

end Sample.Sums
