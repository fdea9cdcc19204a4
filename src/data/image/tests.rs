//! Files of every kind, whole and broken.

use super::*;

/// Bytes that look random.
fn noise(count: usize) -> Vec<u8> {
    (0..count as u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Three pixels by two, in a colour type's own bytes.
fn png_of(color: ::png::ColorType, depth: ::png::BitDepth, bytes: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut file, 3, 2);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == ::png::ColorType::Indexed {
        encoder.set_palette(vec![0, 0, 0, 9, 8, 7]);
    }
    encoder.write_header().unwrap().write_image_data(bytes).unwrap();
    file
}

fn jpeg_of(width: u16, height: u16, rgb: &[u8]) -> Vec<u8> {
    jpeg_with(&|_| {}, width, height, rgb)
}

type Configure<'a> = dyn Fn(&mut jpeg_encoder::Encoder<&mut Vec<u8>>) + 'a;

fn jpeg_with(configure: &Configure<'_>, width: u16, height: u16, rgb: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut file, 95);
    configure(&mut encoder);
    encoder.encode(rgb, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
    file
}

fn whole(width: usize, height: usize) -> View {
    View { crop: Crop { left: 0, top: 0, width, height }, is_mirrored: false }
}

/// Width, height, and pixels of a file's part.
fn decoded_part(file: &[u8], choose: &Choose<'_>) -> Result<(usize, usize, Vec<[u8; 3]>), String> {
    let mut scratch = Scratch { file: file.to_vec(), ..Scratch::default() };
    decode(&mut scratch, choose)?;
    let Pixels { crop: Crop { width, height, .. }, rgb } = &scratch.pixels;
    let rows = rgb.chunks_exact(3 * width);
    let pixels = rows.flat_map(|row| (0..*width).map(|column| [0, 1, 2].map(|channel| row[channel * width + column])));
    Ok((*width, *height, pixels.collect()))
}

fn decoded(file: &[u8]) -> Result<(usize, usize, Vec<[u8; 3]>), String> {
    decoded_part(file, &whole)
}

#[test]
fn every_colour_type_of_a_png_becomes_red_green_and_blue() {
    use ::png::{BitDepth, ColorType};
    let grey: Vec<u8> = [1, 2, 3, 4, 5, 6].iter().flat_map(|grey| [*grey; 3]).collect();
    let rgb: Vec<u8> = (0..18).collect();
    let rgba: Vec<u8> = rgb.chunks(3).flat_map(|pixel| [pixel, &[200]].concat()).collect();
    let wide: Vec<u8> = rgb.iter().flat_map(|byte| [*byte, 99]).collect();
    let wide_grey: Vec<u8> = [1, 2, 3, 4, 5, 6].iter().flat_map(|byte| [*byte, 255]).collect();
    let indexed: Vec<u8> = [0, 1, 0, 1, 0, 1].iter().flat_map(|index| [[0, 0, 0], [9, 8, 7]][*index]).collect();
    let bits: Vec<u8> = [0, 1, 0, 1, 0, 1].iter().flat_map(|bit| [255 * bit; 3]).collect();
    for (color, depth, bytes, expected) in [
        (ColorType::Rgb, BitDepth::Eight, rgb.clone(), &rgb),
        (ColorType::Rgb, BitDepth::Sixteen, wide, &rgb),
        (ColorType::Rgba, BitDepth::Eight, rgba, &rgb),
        (ColorType::Grayscale, BitDepth::Eight, vec![1, 2, 3, 4, 5, 6], &grey),
        (ColorType::Grayscale, BitDepth::Sixteen, wide_grey, &grey),
        (ColorType::Grayscale, BitDepth::One, vec![0b0100_0000, 0b1010_0000], &bits),
        (ColorType::GrayscaleAlpha, BitDepth::Eight, vec![1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0], &grey),
        (ColorType::Indexed, BitDepth::Eight, vec![0, 1, 0, 1, 0, 1], &indexed),
        (ColorType::Indexed, BitDepth::One, vec![0b0100_0000, 0b1010_0000], &indexed),
    ] {
        let (width, height, pixels) = decoded(&png_of(color, depth, &bytes)).unwrap();
        assert_eq!((width, height, pixels.as_flattened()), (3, 2, &expected[..]), "{color:?} {depth:?}");
    }
}

#[test]
fn a_jpeg_is_about_what_was_drawn() {
    let rgb: Vec<u8> = (0..40 * 30).flat_map(|place| [(place % 40) as u8 * 6, 100, 40]).collect();
    let (width, height, pixels) = decoded(&jpeg_of(40, 30, &rgb)).unwrap();
    assert_eq!((width, height, pixels.len()), (40, 30, 1200));
    let worst = pixels.as_flattened().iter().zip(&rgb).map(|(found, drawn)| found.abs_diff(*drawn)).max();
    assert!(worst.is_some_and(|worst| worst < 24), "{worst:?}");
}

#[test]
fn a_grey_jpeg_becomes_red_green_and_blue() {
    let mut file = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut file, 100);
    encoder.encode(&[120; 64], 8, 8, jpeg_encoder::ColorType::Luma).unwrap();
    let (_, _, pixels) = decoded(&file).unwrap();
    assert_eq!(pixels.len(), 64);
    assert!(pixels.as_flattened().iter().all(|byte| byte.abs_diff(120) < 3));
}

/// JPEG of every common sampling, with restarts and without, and progressive; and PNG.
fn kinds(width: u16, height: u16) -> Vec<(String, Vec<u8>)> {
    use jpeg_encoder::SamplingFactor;
    let rgb = noise(3 * usize::from(width) * usize::from(height));
    let mut kinds = Vec::new();
    for sampling in [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_1_2, SamplingFactor::F_2_2] {
        for (restarts, is_progressive) in [(0, false), (1, false), (7, false), (0, true)] {
            let configure = |encoder: &mut jpeg_encoder::Encoder<&mut Vec<u8>>| {
                encoder.set_sampling_factor(sampling);
                encoder.set_progressive(is_progressive);
                if restarts > 0 {
                    encoder.set_restart_interval(restarts);
                }
            };
            let name = format!("{sampling:?}, restarts {restarts}, progressive {is_progressive}");
            kinds.push((name, jpeg_with(&configure, width, height, &rgb)));
        }
    }
    let mut png = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut png, width.into(), height.into());
    encoder.set_color(::png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&rgb).unwrap();
    kinds.push(("png".to_owned(), png));
    kinds
}

#[test]
fn a_crop_is_what_it_would_be_of_the_whole_image() {
    let (width, height) = (61, 83);
    for (name, file) in kinds(width as u16, height as u16) {
        let all = decoded(&file).unwrap();
        assert_eq!((all.0, all.1), (width, height));
        for crop in [(0, 0, 1, 1), (60, 82, 1, 1), (15, 16, 17, 1), (16, 15, 1, 33), (7, 31, 30, 40), (0, 50, 61, 33)] {
            let (left, top, columns, rows) = crop;
            let crop = Crop { left, top, width: columns, height: rows };
            let part = decoded_part(&file, &|_, _| View { crop, is_mirrored: false }).unwrap();
            let expected = (top..top + rows).flat_map(|row| &all.2[row * width + left..row * width + left + columns]);
            assert!(part.2.iter().eq(expected), "{name}, {crop:?}");
        }
    }
}

/// Files that Pillow 13 wrote, 43 × 27 pixels, and the bytes that it reads of them (`convert("RGB")`, as torchvision does).
#[test]
fn a_jpeg_of_any_kind_is_what_pillow_reads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data/pillow");
    for (name, most, mean) in [
        ("full", 2, 0.05),
        ("grey", 1, 0.05),
        ("cmyk", 1, 0.05),
        ("rgb", 1, 0.05),
        // Colours of half the resolution are smoothed with other roundings.
        ("halved-columns", 2, 0.3),
        ("halved", 3, 0.4),
        ("restarts", 3, 0.4),
        ("rotated-by-exif", 3, 0.4),
        ("progressive", 3, 0.4),
    ] {
        let (width, height, pixels) = decoded(&std::fs::read(folder.join(format!("{name}.jpg"))).unwrap()).unwrap();
        let pillow = std::fs::read(folder.join(format!("{name}.rgb"))).unwrap();
        assert_eq!((width, height, 3 * pixels.len()), (43, 27, pillow.len()), "{name}");
        let differences = pixels.as_flattened().iter().zip(&pillow).map(|(ours, theirs)| ours.abs_diff(*theirs));
        let largest = differences.clone().max().unwrap();
        let found = differences.map(f64::from).sum::<f64>() / pillow.len() as f64;
        assert!(largest <= most && found <= mean, "{name}: {largest} at most, {found} on average");
    }
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    for (name, file) in kinds(64, 64) {
        assert!(decoded(&file).is_ok());
        // Some of the last bytes may be missing (see `jpeg`).
        for end in (0..file.len() - 40).step_by(809) {
            assert!(decoded(&file[..end]).is_err(), "{end} of {} bytes, {name}", file.len());
        }
    }
}

#[test]
fn data_that_ends_early_is_told_with_its_offset() {
    let file = jpeg_of(64, 64, &noise(3 * 64 * 64));
    let error = decoded(&file[..file.len() / 2]).unwrap_err();
    assert_eq!(error, format!("it ends before its image does, at offset {}", file.len() / 2));
    // Within the header.
    let error = decoded(&file[..100]).unwrap_err();
    let offset: usize = error.strip_prefix("it ends before its image does, at offset ").unwrap().parse().unwrap();
    assert!(offset <= 100, "{offset}");
}

#[test]
fn bytes_that_are_wrong_never_panic_beyond_the_decoder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.jpg");
    for (_, file) in kinds(48, 48) {
        for place in (2..file.len()).step_by(211) {
            let mut broken = file.clone();
            broken[place] ^= 0x55;
            std::fs::write(&path, broken).unwrap();
            // Some changes leave an image; whatever comes is an image or an error that names the file.
            let resample = Resample { width: 4, height: 4, normalisation: Normalisation::IMAGENET };
            match load(&path, &resample, &whole) {
                Ok(values) => assert_eq!(values.len(), 48),
                Err(error) => assert!(error.to_string().contains("broken.jpg"), "{error}"),
            }
        }
    }
}

/// A header's checksum, bit by bit.
fn crc(bytes: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    (!crc).to_be_bytes()
}

/// A PNG whose header says another size.
fn png_promising(width: u32, height: u32) -> Vec<u8> {
    let mut file = png_of(::png::ColorType::Grayscale, ::png::BitDepth::Eight, &[0; 6]);
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    let crc = crc(&file[12..29]);
    file[29..33].copy_from_slice(&crc);
    file
}

#[test]
fn a_bomb_is_refused_before_there_is_memory_for_it() {
    let error = decoded(&png_promising(65_535, 65_535)).unwrap_err();
    assert!(error.contains("65535 × 65535 pixels"), "{error}");
    // Few enough, but more than so few bytes can hold.
    let error = decoded(&png_promising(13_000, 13_000)).unwrap_err();
    assert!(error.contains("it ends before its 13000 × 13000 pixels do"), "{error}");
    for is_progressive in [false, true] {
        for (width, height, told) in [(65_535_u16, 65_535_u16, "none or too many"), (13_000, 13_000, "it ends before")]
        {
            let mut file = jpeg_with(&|encoder| encoder.set_progressive(is_progressive), 8, 8, &[9; 192]);
            let frame = file.windows(2).position(|bytes| matches!(bytes, [0xff, 0xc0 | 0xc2])).unwrap();
            file[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
            file[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
            let error = decoded(&file).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
    assert!(decoded(&png_promising(0, 7)).is_err());
    assert!(decoded(b"").unwrap_err().contains("empty"));
    assert!(decoded(b"GIF89a").unwrap_err().contains("neither"));
}

#[test]
fn memory_of_a_large_file_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.png");
    let mut file = png_of(::png::ColorType::Grayscale, ::png::BitDepth::Eight, &[0; 6]);
    let resample = Resample { width: 2, height: 2, normalisation: Normalisation::IMAGENET };
    let kept = || SCRATCH.with_borrow(|scratch| scratch.file.capacity());
    for (padding, is_kept) in [(0, true), (KEPT_PIXELS, false), (10, true)] {
        file.resize(file.len().min(100) + padding, 0);
        std::fs::write(&path, &file).unwrap();
        assert_eq!(load(&path, &resample, &whole).unwrap().len(), 12);
        assert_eq!(kept() > 0, is_kept, "{padding} bytes behind the image");
    }
}
