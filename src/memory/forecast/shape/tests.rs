//! Fits of known polynomials, of known lies, and of noise.

use proptest::prelude::*;

use super::monomial::monomials;
use super::*;

fn shapes(values: &[[u64; 2]]) -> Vec<Shape> {
    values.iter().map(|values| Shape::new(values).unwrap()).collect()
}

/// The seven probes of `shared/research/measured.md`.
fn probes() -> Vec<Shape> {
    shapes(&[[2, 64], [3, 64], [2, 96], [3, 96], [2, 160], [4, 128], [3, 200]])
}

/// Probes that vary every axis, apart from one another.
fn varied(axes: usize) -> Vec<Shape> {
    let values = [
        [2, 64, 40, 7],
        [3, 64, 72, 19],
        [2, 96, 56, 26],
        [3, 97, 33, 11],
        [5, 160, 96, 13],
        [4, 128, 49, 31],
        [7, 200, 65, 5],
        [3, 33, 120, 23],
        [6, 48, 88, 37],
        [4, 81, 25, 16],
    ];
    values.iter().map(|values| Shape::new(&values[..axes]).unwrap()).collect()
}

fn fit(shapes: &[Shape], sizes: &[u64]) -> SizeFit {
    SizeFitter::new(shapes).fit(sizes)
}

fn fitted(size: impl Fn(u64, u64) -> u64) -> SizeFit {
    let probes = probes();
    let sizes: Vec<u64> = probes.iter().map(|shape| size(shape.values()[0], shape.values()[1])).collect();
    fit(&probes, &sizes)
}

fn exact(fitted: &SizeFit) -> &Polynomial {
    match fitted {
        SizeFit::Exact(polynomial) => polynomial,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_sizes_of_a_transformer_are_recovered() {
    let size: [fn(u64, u64) -> u64; 6] = [
        |_, _| 4 * 512 * 512,
        |b, t| 4 * 512 * b * t,
        |b, t| 4 * 8 * b * t * t,
        |_, t| 4 * t * t,
        |b, t| 4 * (b * t + b),
        |_, t| 2 * (t * t + t),
    ];
    for (number, size) in size.into_iter().enumerate() {
        let fitted = fitted(size);
        let polynomial = exact(&fitted);
        assert!(polynomial.terms() <= 2, "{number}: {polynomial:?}");
        for (b, t) in [(8, 512), (1, 1), (64, 1000)] {
            assert_eq!(polynomial.at(&Shape::new(&[b, t]).unwrap()), Some(size(b, t)), "{number} at {b}, {t}");
        }
    }
}

#[test]
fn nothing_is_a_polynomial_too() {
    assert_eq!(exact(&fitted(|_, _| 0)).at(&Shape::new(&[5, 5]).unwrap()), Some(0));
}

#[test]
fn padding_to_a_multiple_is_bounded_and_not_exact() {
    let padded = |b: u64, t: u64| 4 * b * t.div_ceil(48) * 48;
    let fitted = fitted(padded);
    let SizeFit::Bounded { off_permille, .. } = fitted else { panic!("{fitted:?}") };
    assert!((1..500).contains(&off_permille));
    for shape in probes() {
        assert!(fitted.at(&shape) >= padded(shape.values()[0], shape.values()[1]), "a bound of its samples");
    }
}

#[test]
fn far_from_the_probes_a_polynomial_may_have_no_size() {
    let (shrinking, growing) = (fitted(|b, t| (256 - t) * b * 1024), fitted(|b, t| b * t * (1 << 32)));
    let has_size = |fit: &SizeFit, t: u64| fit.has_size_at(&Shape::of([8, t]));
    assert!(has_size(&shrinking, 256) && !has_size(&shrinking, 257));
    assert!(has_size(&growing, 1 << 15) && !has_size(&growing, (1 << 15) + 1));
    assert!(!SizeFit::Unknown.has_size_at(&Shape::of([2, 64])));
}

#[test]
fn two_probes_tell_what_one_term_can_and_one_nothing() {
    let two = shapes(&[[2, 64], [3, 96]]);
    assert!(matches!(fit(&two, &[512, 512]), SizeFit::Exact(_)));
    assert!(matches!(fit(&two[..1], &[512]), SizeFit::Unknown));
    assert!(matches!(fit(&[], &[]), SizeFit::Unknown));
}

proptest! {
    #[test]
    fn a_polynomial_with_up_to_three_terms_is_recovered(
        coefficients in proptest::collection::vec(1_u64..1_000_000, 1..=3),
        places in proptest::sample::subsequence((0..6).collect::<Vec<usize>>(), 3),
        b in 1_u64..512,
        t in 1_u64..4096,
    ) {
        let terms = monomials(2);
        let size = |shape: &Shape| -> u64 {
            let parts = coefficients.iter().zip(&places);
            parts.map(|(c, place)| c * u64::try_from(terms[*place].at(shape).unwrap()).unwrap()).sum()
        };
        let probes = probes();
        let sizes: Vec<u64> = probes.iter().map(size).collect();
        let there = Shape::new(&[b, t]).unwrap();
        prop_assert_eq!(fit(&probes, &sizes).at(&there), size(&there));
    }

    #[test]
    fn noise_is_never_exact_silently(noise in proptest::collection::vec(1_u64..1_000, 7)) {
        let probes = probes();
        let sizes: Vec<u64> = probes
            .iter()
            .zip(&noise)
            .map(|(shape, noise)| 4096 * shape.values()[0] * shape.values()[1] + noise * noise)
            .collect();
        if let SizeFit::Exact(polynomial) = fit(&probes, &sizes) {
            // Then it is one: every sample is on it.
            prop_assert!(polynomial.is_exact(&probes, &sizes));
        }
    }

    #[test]
    fn what_a_held_out_probe_refutes_is_never_exact_with_it(
        padding in 3_u64..64,
        held_out in 0_usize..7,
        there in 64_u64..200,
    ) {
        // Rows padded to a multiple: a polynomial only where all lengths are multiples.
        let size = |shape: &Shape| 4 * shape.values()[0] * shape.values()[1].next_multiple_of(padding);
        let mut probes = probes();
        let known = fit(&probes, &probes.iter().map(size).collect::<Vec<_>>());
        let is_padded = probes.iter().any(|shape| !shape.values()[1].is_multiple_of(padding));
        prop_assert!(!is_padded || !matches!(known, SizeFit::Exact(_)), "{:?}", known);
        let out = probes.remove(held_out);
        if let SizeFit::Exact(polynomial) = fit(&probes, &probes.iter().map(size).collect::<Vec<_>>()) {
            let right = polynomial.at(&out) == Some(size(&out));
            prop_assert!(right || is_padded);
        }
        // What stands in is off by no more than the padding and its own margin, within the range of the probes.
        let there = Shape::of([3, there]);
        prop_assert!(known.at(&there) >= 4 * 3 * there.values()[1]);
    }

    #[test]
    fn samples_from_strangers_end_in_some_answer(sizes in proptest::collection::vec(any::<u64>(), 7)) {
        let probes = probes();
        let _ = fit(&probes, &sizes).at(&Shape::new(&[u64::MAX, u64::MAX]).unwrap());
    }
}

/// A sum of monomials over some axes.
#[derive(Clone, Debug)]
struct Known {
    axes: usize,
    terms: Vec<(u64, Monomial)>,
}

impl Known {
    fn at(&self, shape: &Shape) -> u64 {
        let value = |(factor, term): &(u64, Monomial)| factor * u64::try_from(term.at(shape).unwrap()).unwrap();
        self.terms.iter().map(value).sum()
    }
}

/// Any sum of up to so many different monomials, over one axis to four.
fn known(most_terms: usize) -> impl Strategy<Value = Known> {
    let terms = move |axes: usize| {
        let all = monomials(axes);
        let count = 1..=most_terms.min(all.len());
        let chosen = proptest::sample::subsequence(all, count);
        chosen.prop_flat_map(|terms| {
            let factors = proptest::collection::vec(1_u64..10_000, terms.len());
            (factors, Just(terms)).prop_map(|(factors, terms)| factors.into_iter().zip(terms).collect::<Vec<_>>())
        })
    };
    (1_usize..=4).prop_flat_map(move |axes| terms(axes).prop_map(move |terms| Known { axes, terms }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_polynomial_of_one_to_four_axes_is_recovered_from_twice_as_many_probes_as_it_has_terms(
        known in known(4),
        there in proptest::collection::vec(2_u64..100, 4),
    ) {
        let probes = &varied(known.axes)[..(2 * known.terms.len()).max(known.axes + 2)];
        let sizes: Vec<u64> = probes.iter().map(|shape| known.at(shape)).collect();
        let there = Shape::new(&there[..known.axes]).unwrap();
        let fitted = fit(probes, &sizes);
        prop_assert!(matches!(fitted, SizeFit::Exact(_)), "{:?}", fitted);
        prop_assert_eq!(fitted.at(&there), known.at(&there));
    }

    #[test]
    fn a_polynomial_with_one_sample_off_is_refused(
        known in known(3),
        place in 0_usize..10,
        noise in 1_u64..5_000,
    ) {
        let probes = varied(known.axes);
        let mut sizes: Vec<u64> = probes.iter().map(|shape| known.at(shape)).collect();
        sizes[place] += noise;
        let fitted = fit(&probes, &sizes);
        prop_assert!(matches!(fitted, SizeFit::Bounded { .. } | SizeFit::Unknown), "{:?}", fitted);
        for (shape, bytes) in probes.iter().zip(&sizes) {
            prop_assert!(fitted.at(shape) >= *bytes, "a bound of its samples");
        }
    }

    #[test]
    fn what_too_few_probes_leave_open_is_never_exact_and_wrong(
        known in known(4),
        count in 3_usize..8,
        there in proptest::collection::vec(2_u64..100, 4),
    ) {
        let probes = &varied(known.axes)[..count];
        let sizes: Vec<u64> = probes.iter().map(|shape| known.at(shape)).collect();
        if let exact @ SizeFit::Exact(_) = fit(probes, &sizes) {
            let there = Shape::new(&there[..known.axes]).unwrap();
            prop_assert_eq!(exact.at(&there), known.at(&there));
        }
    }
}

#[test]
fn square_images_do_not_tell_the_height_from_the_width() {
    let squares: Vec<Shape> = [[2, 32], [3, 32], [2, 64], [3, 96], [4, 64], [2, 128], [5, 160], [3, 192]]
        .map(|[b, s]| Shape::of([b, s, s]))
        .to_vec();
    let sizes = |squares: &[Shape]| -> Vec<u64> {
        squares.iter().map(|shape| 12 * shape.values()[0] * shape.values()[1] * shape.values()[2]).collect()
    };
    let fitted = fit(&squares, &sizes(&squares));
    let SizeFit::Ambiguous([one, other]) = &fitted else { panic!("{fitted:?}") };
    assert_ne!(one, other);
    // One image that is not square does.
    let mut shapes = squares;
    shapes[7] = Shape::of([3, 96, 192]);
    assert!(matches!(fit(&shapes, &sizes(&shapes)), SizeFit::Exact(_)));
}

#[test]
fn two_lengths_do_not_tell_a_line_from_a_square() {
    let two = shapes(&[[2, 64], [3, 64], [2, 96], [3, 96], [4, 64], [5, 96]]);
    let sizes = |size: fn(u64, u64) -> u64| -> Vec<u64> {
        two.iter().map(|shape| size(shape.values()[0], shape.values()[1])).collect()
    };
    assert!(matches!(fit(&two, &sizes(|b, t| 8 * b * t * t)), SizeFit::Exact(_)), "the shortest answer");
    assert!(matches!(fit(&two, &sizes(|_, t| 8 * t + 100)), SizeFit::Ambiguous(_)));
}

#[test]
fn the_padded_images_of_a_convolution_take_eight_probes() {
    let padded = |shape: &Shape| 4 * 16 * shape.values()[0] * (shape.values()[1] + 2) * (shape.values()[2] + 2);
    let probes = varied(3);
    let fitted = |count: usize| {
        let probes = &probes[..count];
        fit(probes, &probes.iter().map(padded).collect::<Vec<_>>())
    };
    let told = |count: usize| SizeFitter::new(&probes[..count]).told().to_string();
    assert_eq!(told(8), "");
    assert_eq!(told(7), " with up to 3 terms, which is all that 7 probes tell (hint: 8 probes tell 4)");
    assert_eq!(exact(&fitted(8)).terms(), 4, "B·H·W, B·H, B·W and B");
    assert_eq!(fitted(8).at(&Shape::of([8, 224, 320])), padded(&Shape::of([8, 224, 320])));
    assert!(!matches!(fitted(7), SizeFit::Exact(_)), "three of its terms could be confirmed, and it has four");
}
